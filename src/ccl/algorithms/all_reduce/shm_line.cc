// SPDX-License-Identifier: Apache-2.0
/// all_reduce of data that fits into a flag line: data and flag arrive in one cache line, and each rank reduces all
/// lines. No paper.
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"

namespace nupa::ccl::shm {

CollectiveTask all_reduce_lines(ShmGroup& group, const Call& call) {
  Factors factors;
  if (has_factors(call.reducer))
    if (const int error = co_await exchange_factors(group, call.reducer, &factors); error != 0) co_return error;
  const uint32_t step = group.begin(1) + 1;
  const uint32_t turn = group.next_turn(step);
  if (!group.may_write(kSmallTurns))
    if (const int error = co_await until_all_left(group, kSmallTurns); error != 0) co_return error;
  group.write_line(turn, call.in, call.bytes(), step);
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (const int error = co_await group.wrote_line(rank, turn, step); error != 0) co_return error;
  combine_ranks(call.reducer, factors, call.out, group.ranks(), call.elements,
                [&](uint32_t rank) -> const void* { return group.line_of(rank, turn).payload; });
  group.all_have_begun();
  co_return 0;
}

}  // namespace nupa::ccl::shm
