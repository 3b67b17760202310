// SPDX-License-Identifier: Apache-2.0
/// Hierarchical all_gather: the first rank of each node exchanges the blocks of its node. Träff, "Efficient allgather
/// for regular SMP-clusters" (2006).
#include "ccl/algorithms/hierarchical/parts.h"

namespace nupa::ccl::hierarchical {
namespace {

/// Returns the broadcast of a range of the result from the first rank of a node to the others.
Call spread(const Call& call, size_t begin, size_t end) {
  Call part;
  part.operation = Operation::kBroadcast;
  part.out = bytes_at(call.out, begin);
  part.in = part.out;
  part.elements = end - begin;  // elements of one byte
  return part;
}

}  // namespace

CollectiveTask all_gather(HierarchicalGroup& group, const Call& call) {
  const uint32_t memory = group.topology().memory;
  const size_t block = call.bytes();
  std::vector<size_t> lengths;
  std::vector<size_t> offsets;
  for (uint32_t other = 0; other < group.memories(); ++other) {
    lengths.push_back(group.size_of_memory(other) * block);
    offsets.push_back(group.first_of(other) * block);
  }
  const size_t begin = offsets[memory];
  const size_t end = begin + lengths[memory];

  Call within = part_of(call, Operation::kAllGather);
  within.out = bytes_at(call.out, begin);
  if (const int error = co_await group.run_within(within); error != 0) co_return error;
  if (group.local().rank() == 0) {
    Call between = part_of(call, Operation::kAllGather);
    between.in = within.out;
    between.elements = lengths[memory] / call.reducer.element_bytes();
    between.equal = group.is_even();
    if (!between.equal)
      between.lists = std::make_shared<BlockLists>(BlockLists{{}, {0, lengths.data(), offsets.data()}, {}});
    if (const int error = co_await group.run_between(between); error != 0) co_return error;
  }
  const Call before = spread(call, 0, begin);
  if (begin > 0)
    if (const int error = co_await group.run_within(before); error != 0) co_return error;
  const size_t whole = group.topology().ranks * block;
  const Call after = spread(call, end, whole);
  if (end == whole) co_return 0;
  co_return co_await group.run_within(after);
}

}  // namespace nupa::ccl::hierarchical
