// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Common parts of the algorithms that use slots.
#include "ccl/call/call.h"
#include "ccl/channel/shm_group.h"
#include "ccl/reduce/combine.h"

namespace nupa::ccl::shm {

/// Waits until all ranks have left what this generation writes: a flag line, or slots that are used again after `turns`
/// generations. It is needed only if group.may_write() returns false.
CollectiveTask until_all_left(ShmGroup& group, uint32_t turns);
/// Waits until all ranks have completed the step.
CollectiveTask until_all_reached(ShmGroup& group, uint32_t step);
/// Computes the largest value of all ranks, for values that only some ranks have.
CollectiveTask agree_on_largest(ShmGroup& group, size_t mine, size_t* largest);
/// Exchanges the factors of all ranks. Await it only if has_factors().
CollectiveTask exchange_factors(ShmGroup& group, const Reducer& reducer, Factors* factors);

/// A gather of equal or longest blocks. Ranks with `reads` take the blocks of the others as they arrive. `all_read`:
/// every rank reads.
CollectiveTask gather_blocks(ShmGroup& group, const Call& call, size_t longest, bool reads, bool all_read);

/// No type has larger elements.
constexpr size_t kLargestElement = size_of(Type::kFloat64);

/// Returns how much of each rank's block fits into a slot of `bytes` that has a part of every rank's block: whole cache
/// lines, or whole elements if the slot has less than a cache line for each rank.
inline size_t part_of_each(const ShmGroup& group, size_t bytes) {
  static_assert(kSmallSlotBytes / kMaxSources >= kLargestElement, "the smallest slot has an element of each rank");
  const size_t room = bytes / group.ranks();
  const size_t unit = room < kCacheLine ? kLargestElement : kCacheLine;
  return room / unit * unit;
}
inline size_t part_of_each(const ShmGroup& group) { return part_of_each(group, group.slot_bytes()); }
/// Returns slots with room for `longest` bytes of every rank.
inline ShmGroup::Slots slots_of_parts(const ShmGroup& group, size_t longest) {
  return group.slots((longest + kCacheLine - 1) / kCacheLine * kCacheLine * group.ranks());
}

/// Copies the elements that other ranks reduce into this generation's slot. `mine` is the chunk that this rank reduces.
inline void put_slices(ShmGroup& group, uint32_t turn, const std::byte* in, const Slice& mine, size_t elements,
                       size_t element_bytes) {
  std::byte* const slot = group.slot_in(group.rank(), turn);
  copy_array(slot, in, mine.begin * element_bytes);
  copy_array(slot + mine.end * element_bytes, in + mine.end * element_bytes, (elements - mine.end) * element_bytes);
}

/// Copies a part of every other rank's block into this generation's slot, one after the other.
inline void put_parts(const ShmGroup& group, std::byte* slot, const void* in, const Blocks& blocks, size_t begin,
                      size_t at_once) {
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (rank != group.rank())
      copy_array(slot + rank * at_once, bytes_at(in, blocks.offset(rank) + begin),
                 part_length(blocks.length(rank), begin, at_once));
}

}  // namespace nupa::ccl::shm
