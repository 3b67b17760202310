#pragma once
/// What algorithms on slots have in common.
#include <algorithm>

#include "ccl/mapped/group.h"
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

/// So much of each rank's block fits into a slot of `bytes` that has a part of every rank's: whole cache lines.
inline size_t part_of_each(const MappedGroup& group, size_t bytes) {
  return std::max<size_t>(bytes / group.ranks() / kCacheLine, 1) * kCacheLine;
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

}  // namespace nupa::ccl::mapped
