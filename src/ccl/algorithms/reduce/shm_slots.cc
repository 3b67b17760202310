// SPDX-License-Identifier: Apache-2.0
/// reduce: the root reduces the slots of all ranks. Graham and Shipman, "MPI support for multi-core architectures:
/// optimized shared memory collectives" (2008).
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"

namespace nupa::ccl::shm {

CollectiveTask reduce_slots(ShmGroup& group, const Call& call) {
  Factors factors;
  if (has_factors(call.reducer))
    if (const int error = co_await exchange_factors(group, call.reducer, &factors); error != 0) co_return error;
  const size_t size = call.reducer.element_bytes();
  const ShmGroup::Slots slots = group.slots(call.bytes());
  const size_t at_once = slots.bytes / size;
  for (size_t begin = 0; begin < call.elements; begin += at_once) {
    const size_t elements = part_length(call.elements, begin, at_once);
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    const std::byte* const in = bytes_at(call.in, begin * size);
    if (group.rank() != call.root) {
      if (!group.may_write(slots.turns))
        if (const int error = co_await until_all_left(group, slots.turns); error != 0) co_return error;
      copy_array(group.slot_in(group.rank(), turn, slots), in, elements * size);
      group.publish(step);
      continue;
    }
    group.publish(step);
    if (const int error = co_await until_all_reached(group, step); error != 0) co_return error;
    combine_ranks(
        call.reducer, factors, bytes_at(call.out, begin * size), group.ranks(), elements,
        [&](uint32_t rank) -> const void* { return rank == group.rank() ? in : group.slot_in(rank, turn, slots); });
  }
  co_return 0;
}

}  // namespace nupa::ccl::shm
