#pragma once
/// What algorithms on slots have in common.
#include <algorithm>
#include <vector>

#include "ccl/mapped/group.h"
#include "ccl/reduce/combine.h"

namespace nupa::ccl::mapped {

inline const std::byte* bytes_at(const void* data, size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
inline std::byte* bytes_at(void* data, size_t offset) { return static_cast<std::byte*>(data) + offset; }

/// Whether an array and a part of a result are one place, so that nothing has to be copied.
inline void copy_unless_same(void* to, const void* from, size_t bytes) {
  if (to != from) copy_array(to, from, bytes);
}

/// Until all ranks have left what is written in this turn; needed only where group.may_write() does not know it.
Steps until_all_left(MappedGroup& group);
/// Until all ranks have come through the step.
Steps until_all_reached(MappedGroup& group, uint32_t step);
/// The largest of what the ranks say, for what only some of them know.
Steps agree_on_largest(MappedGroup& group, size_t mine, size_t* largest);
/// What each rank multiplies its elements with. Empty where the operator has no factors.
struct Factors {
  std::vector<uint64_t> of_rank;
  const void* at(uint32_t rank) const { return of_rank.empty() ? nullptr : &of_rank[rank]; }
};
Steps exchange_factors(MappedGroup& group, const Reducer& reducer, Factors* factors);

/// Reduces what `data_of` names for each rank below `count`. Not part of a coroutine, in whose frame the list would
/// lie.
template <class DataOf>
[[gnu::noinline]] void combine_ranks(const Reducer& reducer, const Factors& factors, void* out, uint32_t count,
                                     size_t elements, const DataOf& data_of) {
  Source sources[kMaxSources];
  for (uint32_t rank = 0; rank < count; ++rank) sources[rank] = {data_of(rank), factors.at(rank)};
  combine(reducer, out, sources, count, elements);
}

/// Elements [begin, end).
struct Slice {
  size_t begin;
  size_t end;
  size_t length() const { return end - begin; }
};
/// Of `elements`, in as equal parts as whole cache lines allow.
Slice slice_of(uint32_t rank, uint32_t ranks, size_t elements, size_t element_bytes);

/// How much of a block of `length` bytes comes in the part that begins at `begin`.
inline size_t part_length(size_t length, size_t begin, size_t at_once) {
  return begin < length ? std::min(at_once, length - begin) : 0;
}
/// So much of each rank's block fits into a slot that has a part of every rank's: whole cache lines.
inline size_t part_of_each(const MappedGroup& group) {
  return std::max<size_t>(group.slot_bytes() / group.ranks() / kCacheLine, 1) * kCacheLine;
}

}  // namespace nupa::ccl::mapped
