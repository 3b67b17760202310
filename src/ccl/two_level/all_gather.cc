#include "ccl/two_level/parts.h"

namespace nupa::ccl::two_level {
namespace {

/// A range of a result that the first rank has comes to the others of its memory.
Call spread(const Call& call, size_t begin, size_t end) {
  Call part;
  part.operation = Operation::kBroadcast;
  part.out = bytes_at(call.out, begin);
  part.in = part.out;
  part.elements = end - begin;  // of a byte each
  return part;
}

}  // namespace

Steps all_gather(TwoLevelGroup& group, const Call& call) {
  const uint32_t memory = group.topology().memory;
  const size_t block = call.bytes();
  Counts shares;
  for (uint32_t other = 0; other < group.memories(); ++other) {
    shares.counts.push_back(group.size_of_memory(other) * block);
    shares.offsets.push_back(group.first_of(other) * block);
  }
  const size_t begin = shares.offsets[memory];
  const size_t end = begin + shares.counts[memory];

  Call within = part_of(call, Operation::kAllGather);
  within.out = bytes_at(call.out, begin);
  within.out_counts.each = block;
  if (const int error = co_await run_within(group, within); error != 0) co_return error;
  if (group.local().rank() == 0) {
    Call between = part_of(call, Operation::kAllGather);
    between.in = within.out;
    between.elements = shares.counts[memory] / call.reducer.element_bytes();
    between.equal = group.is_even();
    if (between.equal)
      between.out_counts.each = shares.counts[memory];
    else
      between.out_counts = shares;
    if (const int error = co_await run_between(group, between); error != 0) co_return error;
  }
  const Call before = spread(call, 0, begin);
  if (begin > 0)
    if (const int error = co_await run_within(group, before); error != 0) co_return error;
  const size_t whole = group.topology().ranks * block;
  const Call after = spread(call, end, whole);
  if (end == whole) co_return 0;
  co_return co_await run_within(group, after);
}

}  // namespace nupa::ccl::two_level
