// SPDX-License-Identifier: Apache-2.0
/// gather: the root reads each rank's slot, or its array in place, as in broadcast/shm_slots.cc.
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"
#include "ccl/algorithms/shm/shared_arrays.h"

namespace nupa::ccl::shm {

CollectiveTask gather_blocks(ShmGroup& group, const Call& call, size_t longest, bool reads, bool all_read) {
  const uint32_t self = group.rank();
  if (reads) copy_unless_same(bytes_at(call.out, call.out_blocks().offset(self)), call.in, call.bytes());
  if (may_share(group, longest)) {
    SharedArrays arrays;
    const Shown shown{call.in, call.bytes(), call.bytes() > 0 && (all_read || !reads)};
    if (const int error = co_await show_arrays(group, shown, {}, &arrays); error != 0) co_return error;
    if (arrays.can_be_read(longest)) {
      for (uint32_t i = 1; reads && i < group.ranks(); ++i) {
        const uint32_t rank = (self + i) % group.ranks();
        std::byte* const to = bytes_at(call.out, call.out_blocks().offset(rank));
        if (const int error = arrays.read(group, rank, to, 0, call.out_blocks().length(rank)); error != 0)
          co_return error;
      }
      co_return co_await barrier(group);
    }
  }
  const ShmGroup::Slots slots = group.slots(longest);
  const size_t at_once = slots.bytes;
  for (size_t begin = 0; begin < longest; begin += at_once) {
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    if (const size_t length = part_length(call.bytes(), begin, at_once); length > 0) {
      if (!group.may_write(slots.turns))
        if (const int error = co_await until_all_left(group, slots.turns); error != 0) co_return error;
      copy_array(group.slot_in(self, turn, slots), bytes_at(call.in, begin), length);
    }
    group.publish(step);
    for (uint32_t i = 1; reads && i < group.ranks(); ++i) {
      // Each rank begins with another one, so that not all read from the same one.
      const uint32_t rank = (self + i) % group.ranks();
      if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
      copy_array(bytes_at(call.out, call.out_blocks().offset(rank) + begin), group.slot_in(rank, turn, slots),
                 part_length(call.out_blocks().length(rank), begin, at_once));
    }
    if (all_read) group.all_have_begun();
  }
  co_return 0;
}

CollectiveTask gather(ShmGroup& group, const Call& call) {
  size_t longest = call.bytes();
  if (!call.equal)
    if (const int error = co_await agree_on_largest(group, call.bytes(), &longest); error != 0) co_return error;
  co_return co_await gather_blocks(group, call, longest, group.rank() == call.root, false);
}

}  // namespace nupa::ccl::shm
