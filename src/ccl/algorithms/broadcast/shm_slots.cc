// SPDX-License-Identifier: Apache-2.0
/// broadcast through the root's slots. The root fills a slot while the others read the previous one: Graham and
/// Shipman, "MPI support for multi-core architectures: optimized shared memory collectives" (2008). Long arrays are
/// read in place: Chakraborty, Subramoni and Panda, "Contention-aware kernel-assisted MPI collectives for
/// multi-/many-core systems" (2017).
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"
#include "ccl/algorithms/shm/shared_arrays.h"

namespace nupa::ccl::shm {

CollectiveTask broadcast_slots(ShmGroup& group, const Call& call) {
  if (may_share(group, call.bytes())) {
    SharedArrays arrays;
    const Shown shown{call.out, call.bytes(), group.rank() == call.root};
    if (const int error = co_await show_arrays(group, shown, {}, &arrays); error != 0) co_return error;
    if (arrays.can_be_read(call.bytes())) {
      if (group.rank() != call.root)
        if (const int error = arrays.read(group, call.root, call.out, 0, call.bytes()); error != 0) co_return error;
      co_return co_await barrier(group);
    }
  }
  const ShmGroup::Slots slots = group.slots(call.bytes());
  size_t begin = 0;
  do {
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    const size_t length = part_length(call.bytes(), begin, slots.bytes);
    if (group.rank() == call.root) {
      if (!group.may_write(slots.turns))
        if (const int error = co_await until_all_left(group, slots.turns); error != 0) co_return error;
      copy_array(group.slot_in(call.root, turn, slots), bytes_at(call.out, begin), length);
      group.publish(step);
    } else {
      group.publish(step);
      if (const int error = co_await group.reached(call.root, step); error != 0) co_return error;
      copy_array(bytes_at(call.out, begin), group.slot_in(call.root, turn, slots), length);
    }
    begin += length;
  } while (begin < call.bytes());
  co_return 0;
}

}  // namespace nupa::ccl::shm
