#pragma once
/// What algorithms on slots have in common.
#include "ccl/call/call.h"
#include "ccl/channel/shm_group.h"
#include "ccl/reduce/combine.h"

namespace nupa::ccl::mapped {

/// Until all ranks have left what is written in this turn, a line or slots of so many turns; needed only where
/// group.may_write() does not know it.
Steps until_all_left(MappedGroup& group, uint32_t turns);
/// Until all ranks have come through the step.
Steps until_all_reached(MappedGroup& group, uint32_t step);
/// The largest of what the ranks say, for what only some of them know.
Steps agree_on_largest(MappedGroup& group, size_t mine, size_t* largest);
/// Learns what each rank multiplies its elements with. To be awaited only where has_factors().
Steps exchange_factors(MappedGroup& group, const Reducer& reducer, Factors* factors);

/// The gather of equal or longest blocks: ranks that read take the others' blocks as they come. `all_read`: every rank
/// reads.
Steps gather_blocks(MappedGroup& group, const Call& call, size_t longest, bool reads, bool all_read);

/// No type has larger elements.
constexpr size_t kLargestElement = size_of(Type::kFloat64);

/// How much of each rank's block fits into a slot of `bytes` that holds a part of every rank's block: whole cache
/// lines, or whole elements where the slot has no cache line for each rank.
inline size_t part_of_each(const MappedGroup& group, size_t bytes) {
  static_assert(kSmallSlotBytes / kMaxSources >= kLargestElement, "the smallest slot has an element of each rank");
  const size_t room = bytes / group.ranks();
  const size_t unit = room < kCacheLine ? kLargestElement : kCacheLine;
  return room / unit * unit;
}
inline size_t part_of_each(const MappedGroup& group) { return part_of_each(group, group.slot_bytes()); }
/// Slots in which a part of `longest` of every rank's has room.
inline MappedGroup::Slots slots_of_parts(const MappedGroup& group, size_t longest) {
  return group.slots((longest + kCacheLine - 1) / kCacheLine * kCacheLine * group.ranks());
}

/// Copies what the others reduce of this rank's elements into this turn's slot; `mine` is its own slice of them.
inline void put_slices(MappedGroup& group, uint32_t turn, const std::byte* in, const Slice& mine, size_t elements,
                       size_t element_bytes) {
  std::byte* const slot = group.slot_in(group.rank(), turn);
  copy_array(slot, in, mine.begin * element_bytes);
  copy_array(slot + mine.end * element_bytes, in + mine.end * element_bytes, (elements - mine.end) * element_bytes);
}

/// Copies a part of every other rank's block into this turn's slot, one after the other.
inline void put_parts(const MappedGroup& group, std::byte* slot, const void* in, const Blocks& blocks, size_t begin,
                      size_t at_once) {
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (rank != group.rank())
      copy_array(slot + rank * at_once, bytes_at(in, blocks.offset(rank) + begin),
                 part_length(blocks.length(rank), begin, at_once));
}

}  // namespace nupa::ccl::mapped
