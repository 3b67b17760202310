// SPDX-License-Identifier: Apache-2.0
/// scatter: each rank reads its part of the root's slot, or of the root's array in place, as in broadcast/shm_slots.cc.
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"
#include "ccl/algorithms/shm/shared_arrays.h"

namespace nupa::ccl::shm {

CollectiveTask scatter(ShmGroup& group, const Call& call) {
  const bool is_root = group.rank() == call.root;
  size_t longest = call.bytes();
  if (!call.equal)
    if (const int error = co_await agree_on_largest(group, call.bytes(), &longest); error != 0) co_return error;
  if (is_root) copy_unless_same(call.out, bytes_at(call.in, call.in_blocks().offset(call.root)), call.bytes());
  // If blocks differ, only the root has their offsets.
  if (call.equal && may_share(group, longest)) {
    SharedArrays arrays;
    const Shown shown{call.in, longest * group.ranks(), is_root};
    if (const int error = co_await show_arrays(group, shown, {}, &arrays); error != 0) co_return error;
    if (arrays.can_be_read(longest)) {
      if (!is_root)
        if (const int error = arrays.read(group, call.root, call.out, group.rank() * longest, call.bytes()); error != 0)
          co_return error;
      co_return co_await barrier(group);
    }
  }
  const ShmGroup::Slots slots = slots_of_parts(group, longest);
  const size_t at_once = part_of_each(group, slots.bytes);
  for (size_t begin = 0; begin < longest; begin += at_once) {
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    if (is_root) {
      if (!group.may_write(slots.turns))
        if (const int error = co_await until_all_left(group, slots.turns); error != 0) co_return error;
      put_parts(group, group.slot_in(call.root, turn, slots), call.in, call.in_blocks(), begin, at_once);
      group.publish(step);
    } else {
      group.publish(step);
      if (const int error = co_await group.reached(call.root, step); error != 0) co_return error;
      copy_array(bytes_at(call.out, begin), group.slot_in(call.root, turn, slots) + group.rank() * at_once,
                 part_length(call.bytes(), begin, at_once));
    }
  }
  co_return 0;
}

}  // namespace nupa::ccl::shm
