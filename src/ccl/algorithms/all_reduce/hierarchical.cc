// SPDX-License-Identifier: Apache-2.0
/// Hierarchical all_reduce: by the first rank of each node, or in chunks, one for each rank of a node. Karonis et al.,
/// "Exploiting hierarchy in parallel computer networks to optimize collective operation performance" (2000); Träff and
/// Hunold, "Decomposing MPI collectives for exploiting multi-lane communication" (2020).
#include "ccl/algorithms/hierarchical/parts.h"

namespace nupa::ccl::hierarchical {

CollectiveTask all_reduce_by_first(HierarchicalGroup& group, const Call& call) {
  const bool is_first = group.local().rank() == 0;
  // Data that fits into a flag line reaches all ranks as fast as one.
  const bool is_line = call.bytes() <= FlagLine::kPayload;
  const Call within = part_of(call, is_line ? Operation::kAllReduce : Operation::kReduce);
  if (const int error = co_await group.run_within(within); error != 0) co_return error;
  if (is_first) {
    Call between = second_part_of(call, Operation::kAllReduce);
    between.in = call.out;
    if (const int error = co_await group.run_between(between); error != 0) co_return error;
    messages::end_with(call.reducer, call.out, call.elements);
  }
  const Call back = part_of(call, Operation::kBroadcast);
  co_return co_await group.run_within(back);
}

CollectiveTask all_reduce_by_cross_node_groups(HierarchicalGroup& group, const Call& call) {
  const uint32_t self = group.local().rank();
  const size_t size = call.reducer.element_bytes();
  std::vector<size_t> lengths;
  std::vector<size_t> offsets;
  for (uint32_t index = 0; index < group.local().ranks(); ++index) {
    const uint32_t position = std::min(index, group.cross_node_groups());
    const Slice slice = position == group.cross_node_groups()
                            ? Slice{call.elements, call.elements}
                            : slice_of(position, group.cross_node_groups(), call.elements, size);
    lengths.push_back(slice.length() * size);
    offsets.push_back(slice.begin * size);
  }
  std::byte* const own = bytes_at(call.out, offsets[self]);
  const Blocks slices{0, lengths.data(), offsets.data()};
  const auto lists = std::make_shared<BlockLists>(BlockLists{slices, slices, {}});

  Call scatter = part_of(call, Operation::kReduceScatter);
  scatter.out = own;
  scatter.elements = lengths[self] / size;
  scatter.lists = lists;
  scatter.equal = false;
  if (const int error = co_await group.run_within(scatter); error != 0) co_return error;
  if (group.cross_node_group() != nullptr) {
    Call between = second_part_of(call, Operation::kAllReduce);
    between.in = own;
    between.out = own;
    between.elements = scatter.elements;
    if (const int error = co_await group.run_between(between); error != 0) co_return error;
    messages::end_with(call.reducer, own, scatter.elements);
  }
  Call gather = part_of(call, Operation::kAllGather);
  gather.in = own;
  gather.elements = scatter.elements;
  gather.lists = lists;
  gather.equal = false;
  co_return co_await group.run_within(gather);
}

}  // namespace nupa::ccl::hierarchical
