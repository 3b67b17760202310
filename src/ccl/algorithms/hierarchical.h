// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Collectives in three parts: within each node, between nodes, and within each node again. Elements are reduced in the
/// order of the nodes, and of the ranks on each, in groups, so that short types are rounded more than once. `in` and
/// `out` are as in shm.h. Each part uses the best algorithm for it.
#include "ccl/call/call.h"
#include "ccl/channel/hierarchical_group.h"

namespace nupa::ccl::hierarchical {

CollectiveTask barrier(HierarchicalGroup& group);
CollectiveTask broadcast(HierarchicalGroup& group, const Call& call);
CollectiveTask reduce(HierarchicalGroup& group, const Call& call);
/// The first rank of each node exchanges the node's result.
CollectiveTask all_reduce_by_first(HierarchicalGroup& group, const Call& call);
/// Each cross-node group reduces a chunk.
CollectiveTask all_reduce_by_cross_node_groups(HierarchicalGroup& group, const Call& call);
/// Requires equal blocks, with the ranks of each node in order.
CollectiveTask all_gather(HierarchicalGroup& group, const Call& call);
/// Requires equal blocks, and nodes of equal size with their ranks in order. Each cross-node group has the blocks of
/// its ranks.
CollectiveTask reduce_scatter(HierarchicalGroup& group, const Call& call);

}  // namespace nupa::ccl::hierarchical
