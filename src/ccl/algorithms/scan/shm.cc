// SPDX-License-Identifier: Apache-2.0
/// scan and exscan: each rank reduces the slots of the ranks before it. No paper.
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"
#include "ccl/algorithms/shm/shared_arrays.h"

namespace nupa::ccl::shm {

CollectiveTask scan(ShmGroup& group, const Call& call) {
  Factors factors;
  if (has_factors(call.reducer))
    if (const int error = co_await exchange_factors(group, call.reducer, &factors); error != 0) co_return error;
  const uint32_t self = group.rank();
  const uint32_t count = call.is_exclusive() ? self : self + 1;
  const size_t size = call.reducer.element_bytes();
  if (may_share(group, call.bytes())) {
    SharedArrays arrays;
    // In place, elements are overwritten before later ranks read them.
    const Shown shown{call.in == call.out ? nullptr : call.in, call.bytes(), true};
    if (const int error = co_await show_arrays(group, shown, {}, &arrays); error != 0) co_return error;
    if (arrays.are_mapped) {
      if (count > 0)
        combine_ranks(call.reducer, factors, call.out, count, call.elements,
                      [&](uint32_t rank) -> const void* { return arrays.in[rank]; });
      co_return co_await barrier(group);
    }
  }
  const ShmGroup::Slots slots = group.slots(call.bytes());
  const size_t at_once = slots.bytes / size;
  for (size_t begin = 0; begin < call.elements; begin += at_once) {
    const size_t elements = part_length(call.elements, begin, at_once);
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    if (!group.may_write(slots.turns))
      if (const int error = co_await until_all_left(group, slots.turns); error != 0) co_return error;
    const std::byte* const in = bytes_at(call.in, begin * size);
    copy_array(group.slot_in(self, turn, slots), in, elements * size);
    group.publish(step);
    for (uint32_t rank = 0; rank < count; ++rank)
      if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
    // The first rank of an exscan has no rank before it, so its result is not written (MPI 5.11.2).
    if (count > 0)
      combine_ranks(call.reducer, factors, bytes_at(call.out, begin * size), count, elements,
                    [&](uint32_t rank) -> const void* { return rank == self ? in : group.slot_in(rank, turn, slots); });
  }
  co_return 0;
}

}  // namespace nupa::ccl::shm
