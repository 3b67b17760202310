// SPDX-License-Identifier: Apache-2.0
/// Hierarchical reduce_scatter: ranks with the same index on their nodes exchange the results of their nodes. Träff and
/// Hunold, "Decomposing MPI collectives for exploiting multi-lane communication" (2020).
#include "ccl/algorithms/hierarchical/parts.h"

namespace nupa::ccl::hierarchical {

/// Within a node, each rank gets the node's result for the blocks of its cross-node group, one node's blocks after the
/// other's.
CollectiveTask reduce_scatter(HierarchicalGroup& group, const Call& call) {
  const size_t block = call.bytes();
  std::vector<std::byte> sums(group.memories() * block);
  Call within = part_of(call, Operation::kReduceScatter);
  for (uint32_t memory = 0; memory < group.memories(); ++memory) {
    within.in = bytes_at(call.in, group.first_of(memory) * block);
    within.out = sums.data() + memory * block;
    if (const int error = co_await group.run_within(within); error != 0) co_return error;
  }
  Call between = second_part_of(call, Operation::kReduceScatter);
  between.in = sums.data();
  if (const int error = co_await group.run_between(between); error != 0) co_return error;
  messages::end_with(call.reducer, call.out, call.elements);
  co_return 0;
}

}  // namespace nupa::ccl::hierarchical
