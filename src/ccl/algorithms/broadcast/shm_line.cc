// SPDX-License-Identifier: Apache-2.0
/// broadcast of data that fits into the root's flag line: data and flag arrive in one cache line. No paper.
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"

namespace nupa::ccl::shm {

CollectiveTask broadcast_line(ShmGroup& group, const Call& call) {
  const uint32_t step = group.begin(1) + 1;
  const uint32_t turn = group.next_turn(step);
  if (group.rank() != call.root) {
    group.publish(step);
    if (const int error = co_await group.wrote_line(call.root, turn, step); error != 0) co_return error;
    copy_array(call.out, group.line_of(call.root, turn).payload, call.bytes());
    co_return 0;
  }
  if (!group.may_write(kSmallTurns))
    if (const int error = co_await until_all_left(group, kSmallTurns); error != 0) co_return error;
  group.write_line(turn, call.out, call.bytes(), step);
  group.publish(step);
  co_return 0;
}

}  // namespace nupa::ccl::shm
