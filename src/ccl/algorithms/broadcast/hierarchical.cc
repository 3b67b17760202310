// SPDX-License-Identifier: Apache-2.0
/// Hierarchical broadcast: one message to each node, and from there to its ranks. Karonis et al., "Exploiting hierarchy
/// in parallel computer networks to optimize collective operation performance" (2000).
#include "ccl/algorithms/hierarchical/parts.h"

namespace nupa::ccl::hierarchical {

/// Uses the root's cross-node group. If it has none, the first group is used, after a broadcast on the root's node.
CollectiveTask broadcast(HierarchicalGroup& group, const Call& call) {
  const uint32_t self = group.local().rank();
  const uint32_t root_memory = group.memory_of(call.root);
  const uint32_t root_index = group.index_of(call.root);
  const uint32_t position = root_index < group.cross_node_groups() ? root_index : 0;
  const bool comes_first = group.topology().memory == root_memory && root_index != position;
  Call within = part_of(call, Operation::kBroadcast);
  within.root = comes_first ? root_index : position;
  if (comes_first)
    if (const int error = co_await group.run_within(within); error != 0) co_return error;
  if (self == position) {
    Call between = part_of(call, Operation::kBroadcast);
    between.root = root_memory;
    if (const int error = co_await group.run_between(between); error != 0) co_return error;
  }
  if (comes_first) co_return 0;
  co_return co_await group.run_within(within);
}

}  // namespace nupa::ccl::hierarchical
