#pragma once
/// all_reduce among ranks that map each other's arenas. Each element is the ranks' in the order of their numbers,
/// whatever the algorithm: the same bits. `in` may be `out`.
#include "ccl/mapped/group.h"
#include "ccl/reduce/reduce.h"

namespace nupa::ccl {

/// What is reduced on one rank.
struct ReduceTask {
  Reduction reduction;
  const void* in;
  void* out;
  size_t elements;

  size_t bytes() const { return elements * size_of(reduction.type); }
};

/// Reduces what `data_of` names for each rank. Not part of a coroutine, in whose frame the list would lie.
template <class DataOf>
[[gnu::noinline]] void reduce_ranks(const Reduction& reduction, void* out, uint32_t ranks, size_t elements,
                                    const DataOf& data_of) {
  Source sources[kMaxSources];
  for (uint32_t rank = 0; rank < ranks; ++rank) sources[rank].data = data_of(rank);
  reduce(reduction, out, sources, ranks, elements);
}

/// Up to FlagLine::kPayload bytes: each rank writes a line to every other one. One transfer of a cache line.
Steps all_reduce_lines(MappedGroup& group, ReduceTask task);
/// Up to a slot: each rank copies what it has into its slot, and reduces all slots.
Steps all_reduce_slots(MappedGroup& group, ReduceTask task);
/// Any size, a slot at a time: each rank reduces its slice of all slots, and copies the others' slices.
Steps all_reduce_slices(MappedGroup& group, ReduceTask task);

}  // namespace nupa::ccl
