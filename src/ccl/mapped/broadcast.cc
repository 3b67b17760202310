#include "ccl/mapped/algorithms.h"
#include "ccl/mapped/parts.h"
#include "ccl/mapped/shared_arrays.h"

namespace nupa::ccl::mapped {

Steps broadcast_line(MappedGroup& group, BroadcastTask task) {
  const uint32_t step = group.begin(1) + 1;
  const uint32_t turn = group.next_turn(step);
  if (group.rank() != task.root) {
    group.tell(step);
    if (const int error = co_await group.wrote_line(task.root, turn, step); error != 0) co_return error;
    copy_array(task.data, group.line_of(task.root, turn).payload, task.bytes);
    co_return 0;
  }
  if (!group.may_write(kSmallTurns))
    if (const int error = co_await until_all_left(group, kSmallTurns); error != 0) co_return error;
  group.write_line(turn, task.data, task.bytes, step);
  group.tell(step);
  co_return 0;
}

Steps broadcast_slots(MappedGroup& group, BroadcastTask task) {
  if (may_share(group, task.bytes)) {
    SharedArrays arrays;
    const Shown shown{task.data, task.bytes, group.rank() == task.root};
    if (const int error = co_await show_arrays(group, shown, {}, &arrays); error != 0) co_return error;
    if (arrays.can_be_read(task.bytes)) {
      if (group.rank() != task.root)
        if (const int error = arrays.read(group, task.root, task.data, 0, task.bytes); error != 0) co_return error;
      co_return co_await barrier(group);
    }
  }
  const MappedGroup::Slots slots = group.slots(task.bytes);
  size_t begin = 0;
  do {
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    const size_t length = part_length(task.bytes, begin, slots.bytes);
    if (group.rank() == task.root) {
      if (!group.may_write(slots.turns))
        if (const int error = co_await until_all_left(group, slots.turns); error != 0) co_return error;
      copy_array(group.slot_in(task.root, turn, slots), bytes_at(task.data, begin), length);
      group.tell(step);
    } else {
      group.tell(step);
      if (const int error = co_await group.reached(task.root, step); error != 0) co_return error;
      copy_array(bytes_at(task.data, begin), group.slot_in(task.root, turn, slots), length);
    }
    begin += length;
  } while (begin < task.bytes);
  co_return 0;
}

}  // namespace nupa::ccl::mapped
