// SPDX-License-Identifier: Apache-2.0
/// all_to_all: each rank reads its part of all slots, or of all arrays in place, as in broadcast/shm_slots.cc.
#include <algorithm>

#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"
#include "ccl/algorithms/shm/shared_arrays.h"

namespace nupa::ccl::shm {

CollectiveTask all_to_all(ShmGroup& group, const Call& call) {
  const uint32_t self = group.rank();
  size_t longest = std::max(call.in_blocks().longest(group.ranks()), call.out_blocks().longest(group.ranks()));
  if (!call.equal)
    if (const int error = co_await agree_on_largest(group, longest, &longest); error != 0) co_return error;
  const bool in_place = call.in == call.out;
  if (!in_place)
    copy_array(bytes_at(call.out, call.out_blocks().offset(self)), bytes_at(call.in, call.in_blocks().offset(self)),
               call.in_blocks().length(self));
  // If blocks differ, only their owner has their offsets. In place, blocks are overwritten before other ranks read
  // them.
  if (call.equal && may_share(group, longest)) {
    SharedArrays arrays;
    const Shown shown{in_place ? nullptr : call.in, longest * group.ranks(), true};
    if (const int error = co_await show_arrays(group, shown, {}, &arrays); error != 0) co_return error;
    if (arrays.can_be_read(longest)) {
      for (uint32_t i = 1; i < group.ranks(); ++i) {
        const uint32_t rank = (self + i) % group.ranks();
        std::byte* const to = bytes_at(call.out, rank * longest);
        if (const int error = arrays.read(group, rank, to, self * longest, longest); error != 0) co_return error;
      }
      co_return co_await barrier(group);
    }
  }
  const size_t at_once = part_of_each(group);
  for (size_t begin = 0; begin < longest; begin += at_once) {
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    if (!group.may_write(kTurns))
      if (const int error = co_await until_all_left(group, kTurns); error != 0) co_return error;
    put_parts(group, group.slot_in(self, turn), call.in, call.in_blocks(), begin, at_once);
    group.publish(step);
    for (uint32_t i = 1; i < group.ranks(); ++i) {
      const uint32_t rank = (self + i) % group.ranks();
      if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
      copy_array(bytes_at(call.out, call.out_blocks().offset(rank) + begin), group.slot_in(rank, turn) + self * at_once,
                 part_length(call.out_blocks().length(rank), begin, at_once));
    }
    group.all_have_begun();
  }
  co_return 0;
}

}  // namespace nupa::ccl::shm
