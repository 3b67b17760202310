#include "ccl/two_level/parts.h"

namespace nupa::ccl::two_level {

Steps all_reduce_by_first(TwoLevelGroup& group, const Call& call) {
  const bool is_first = group.local().rank() == 0;
  // What fits into a line comes to all as soon as to one.
  const bool is_line = call.bytes() <= FlagLine::kPayload;
  const Call within = part_of(call, is_line ? Operation::kAllReduce : Operation::kReduce);
  if (const int error = co_await run_within(group, within); error != 0) co_return error;
  if (is_first) {
    Call between = second_part_of(call, Operation::kAllReduce);
    between.in = call.out;
    if (const int error = co_await run_between(group, between); error != 0) co_return error;
    lanes::end_with(call.reducer, call.out, call.elements);
  }
  const Call back = part_of(call, Operation::kBroadcast);
  co_return co_await run_within(group, back);
}

Steps all_reduce_by_columns(TwoLevelGroup& group, const Call& call) {
  const uint32_t self = group.local().rank();
  const size_t size = call.reducer.element_bytes();
  Counts slices;
  for (uint32_t index = 0; index < group.local().ranks(); ++index) {
    const uint32_t column = std::min(index, group.columns());
    const Slice slice = column == group.columns() ? Slice{call.elements, call.elements}
                                                  : slice_of(column, group.columns(), call.elements, size);
    slices.counts.push_back(slice.length() * size);
    slices.offsets.push_back(slice.begin * size);
  }
  std::byte* const own = bytes_at(call.out, slices.offsets[self]);

  Call scatter = part_of(call, Operation::kReduceScatter);
  scatter.out = own;
  scatter.elements = slices.counts[self] / size;
  scatter.in_counts = slices;
  scatter.equal = false;
  if (const int error = co_await run_within(group, scatter); error != 0) co_return error;
  if (group.column() != nullptr) {
    Call between = second_part_of(call, Operation::kAllReduce);
    between.in = own;
    between.out = own;
    between.elements = scatter.elements;
    if (const int error = co_await run_between(group, between); error != 0) co_return error;
    lanes::end_with(call.reducer, own, scatter.elements);
  }
  Call gather = part_of(call, Operation::kAllGather);
  gather.in = own;
  gather.elements = scatter.elements;
  gather.out_counts = std::move(slices);
  gather.equal = false;
  co_return co_await run_within(group, gather);
}

}  // namespace nupa::ccl::two_level
