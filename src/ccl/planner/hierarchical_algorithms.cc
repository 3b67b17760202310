// SPDX-License-Identifier: Apache-2.0
#include "ccl/planner/planner.h"
#include "ccl/algorithms/hierarchical.h"

namespace nupa::ccl {
namespace {

/// In bytes. From this size on, the work of one rank for its node takes longer than two more steps of all ranks.
constexpr size_t kColumnsFrom = 32768;

bool fits_always(const Call&, const HierarchicalGroup&) { return true; }
/// A user-defined function may not commute.
bool fits_order(const Call& call, const HierarchicalGroup& group) {
  return call.reducer.function == nullptr || group.is_in_order();
}
bool fits_blocks(const Call& call, const HierarchicalGroup& group) { return call.equal && group.is_in_order(); }
bool fits_even_blocks(const Call& call, const HierarchicalGroup& group) {
  return call.equal && group.is_in_order() && group.is_even();
}
bool fits_cross_node_groups(const Call& call, const HierarchicalGroup& group) {
  return group.cross_node_groups() > 1 && fits_order(call, group);
}

double any_size(const Call&, const HierarchicalGroup&) { return 1; }
double large(const Call& call, const HierarchicalGroup&) { return call.bytes() >= kColumnsFrom ? 0 : 2; }

using enum Operation;
using enum Order;
namespace two = hierarchical;

constexpr Algorithm<HierarchicalGroup> kAlgorithms[] = {
    {kBarrier, "two-level", "within each node, between the nodes' first ranks, within each node", kOfRanks, fits_always,
     any_size, [](HierarchicalGroup& group, const Call&) { return two::barrier(group); }},
    {kBroadcast, "two-level", "one message to each node, then within each node", kOfRanks, fits_always, any_size,
     two::broadcast},
    {kReduce, "two-level", "one message from each node, with the result of its ranks", kOther, fits_order, any_size,
     two::reduce},
    {kAllReduce, "two-level", "the first rank of each node exchanges the node's result", kOther, fits_order, any_size,
     two::all_reduce_by_first},
    {kAllReduce, "columns", "each cross-node group exchanges a chunk of the nodes' results", kOther,
     fits_cross_node_groups, large, two::all_reduce_by_cross_node_groups},
    {kAllGather, "two-level", "the first rank of each node exchanges the node's blocks", kOfRanks, fits_blocks,
     any_size, two::all_gather},
    {kReduceScatter, "two-level", "each cross-node group exchanges its blocks of the nodes' results", kOther,
     fits_even_blocks, any_size, two::reduce_scatter},
};

}  // namespace

template <>
std::span<const Algorithm<HierarchicalGroup>> algorithms() {
  return kAlgorithms;
}

}  // namespace nupa::ccl
