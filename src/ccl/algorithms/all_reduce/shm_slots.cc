// SPDX-License-Identifier: Apache-2.0
/// all_reduce: each rank reduces the slots of all ranks. Graham and Shipman, "MPI support for multi-core architectures:
/// optimized shared memory collectives" (2008).
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"

namespace nupa::ccl::shm {

CollectiveTask all_reduce_slots(ShmGroup& group, const Call& call) {
  Factors factors;
  if (has_factors(call.reducer))
    if (const int error = co_await exchange_factors(group, call.reducer, &factors); error != 0) co_return error;
  const size_t size = call.reducer.element_bytes();
  const size_t at_once = group.slot_bytes() / size;
  for (size_t begin = 0; begin < call.elements; begin += at_once) {
    const size_t elements = part_length(call.elements, begin, at_once);
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    if (!group.may_write(kTurns))
      if (const int error = co_await until_all_left(group, kTurns); error != 0) co_return error;
    const std::byte* const in = bytes_at(call.in, begin * size);
    copy_array(group.slot_in(group.rank(), turn), in, elements * size);
    group.publish(step);
    for (uint32_t rank = 0; rank < group.ranks(); ++rank)
      if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
    combine_ranks(call.reducer, factors, bytes_at(call.out, begin * size), group.ranks(), elements,
                  [&](uint32_t rank) -> const void* { return rank == group.rank() ? in : group.slot_in(rank, turn); });
    group.all_have_begun();
  }
  co_return 0;
}

}  // namespace nupa::ccl::shm
