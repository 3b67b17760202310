// SPDX-License-Identifier: Apache-2.0
/// all_gather of data that fits into a flag line: data and flag arrive in one cache line. No paper.
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"

namespace nupa::ccl::shm {

CollectiveTask all_gather_lines(ShmGroup& group, const Call& call) {
  const uint32_t step = group.begin(1) + 1;
  const uint32_t turn = group.next_turn(step);
  if (!group.may_write(kSmallTurns))
    if (const int error = co_await until_all_left(group, kSmallTurns); error != 0) co_return error;
  group.write_line(turn, call.in, call.bytes(), step);
  copy_unless_same(bytes_at(call.out, call.out_blocks().offset(group.rank())), call.in, call.bytes());
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (rank == group.rank()) continue;
    if (const int error = co_await group.wrote_line(rank, turn, step); error != 0) co_return error;
    copy_array(bytes_at(call.out, call.out_blocks().offset(rank)), group.line_of(rank, turn).payload,
               call.out_blocks().length(rank));
  }
  group.all_have_begun();
  co_return 0;
}

}  // namespace nupa::ccl::shm
