// SPDX-License-Identifier: Apache-2.0
/// Hierarchical reduce: each node sends one message with the result of its ranks. Karonis et al., "Exploiting hierarchy
/// in parallel computer networks to optimize collective operation performance" (2000).
#include "ccl/algorithms/hierarchical/parts.h"

namespace nupa::ccl::hierarchical {

/// Uses the root's cross-node group. If it has none, the first group is used, and its rank on the root's node sends the
/// result to the root.
CollectiveTask reduce(HierarchicalGroup& group, const Call& call) {
  const uint32_t self = group.topology().rank;
  const uint32_t root_memory = group.memory_of(call.root);
  const uint32_t root_index = group.index_of(call.root);
  const uint32_t position = root_index < group.cross_node_groups() ? root_index : 0;
  const uint32_t last = group.topology().memories[root_memory][position];
  const bool is_between = group.local().rank() == position;
  std::vector<std::byte> own(is_between && self != call.root ? call.bytes() : 0);
  void* const sum = self == call.root ? call.out : own.data();
  Call within = part_of(call, Operation::kReduce);
  within.root = position;
  within.out = is_between ? sum : nullptr;
  if (const int error = co_await group.run_within(within); error != 0) co_return error;
  if (is_between) {
    Call between = second_part_of(call, Operation::kReduce);
    between.root = root_memory;
    between.in = sum;
    between.out = sum;
    if (const int error = co_await group.run_between(between); error != 0) co_return error;
  }
  if (last != call.root && call.elements > 0) {
    if (self == last) co_return co_await messages::send_array(group.all(), call.root, sum, call.bytes());
    if (self == call.root)
      if (const int error = co_await messages::receive_array(group.all(), last, sum, call.bytes()); error != 0)
        co_return error;
  }
  if (self == call.root) messages::end_with(call.reducer, call.out, call.elements);
  co_return 0;
}

}  // namespace nupa::ccl::hierarchical
