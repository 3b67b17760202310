// SPDX-License-Identifier: Apache-2.0
/// reduce_scatter: each rank reduces its block of all slots, or of all mapped arrays, as in all_reduce/shm_slices.cc.
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"
#include "ccl/algorithms/shm/shared_arrays.h"

namespace nupa::ccl::shm {

CollectiveTask reduce_scatter(ShmGroup& group, const Call& call) {
  Factors factors;
  if (has_factors(call.reducer))
    if (const int error = co_await exchange_factors(group, call.reducer, &factors); error != 0) co_return error;
  const uint32_t self = group.rank();
  const size_t size = call.reducer.element_bytes();
  const size_t longest = call.in_blocks().longest(group.ranks());
  if (may_share(group, longest)) {
    SharedArrays arrays;
    // A result that lies in another rank's block would be read by that rank.
    const bool is_apart = call.out != call.in || self == 0;
    const size_t bytes = call.in_blocks().offset(group.ranks() - 1) + call.in_blocks().length(group.ranks() - 1);
    const Shown shown{is_apart ? call.in : nullptr, bytes, true};
    if (const int error = co_await show_arrays(group, shown, {}, &arrays); error != 0) co_return error;
    if (arrays.are_mapped) {
      combine_ranks(call.reducer, factors, call.out, group.ranks(), call.in_blocks().length(self) / size,
                    [&](uint32_t rank) -> const void* { return arrays.in[rank] + call.in_blocks().offset(self); });
      co_return co_await barrier(group);
    }
  }
  const size_t at_once = part_of_each(group);
  for (size_t begin = 0; begin < longest; begin += at_once) {
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    if (!group.may_write(kTurns))
      if (const int error = co_await until_all_left(group, kTurns); error != 0) co_return error;
    for (uint32_t rank = 0; rank < group.ranks(); ++rank)
      if (rank != self)
        copy_array(group.slot_in(self, turn) + rank * at_once, bytes_at(call.in, call.in_blocks().offset(rank) + begin),
                   part_length(call.in_blocks().length(rank), begin, at_once));
    group.publish(step);
    for (uint32_t rank = 0; rank < group.ranks(); ++rank)
      if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
    const std::byte* const own = bytes_at(call.in, call.in_blocks().offset(self) + begin);
    combine_ranks(call.reducer, factors, bytes_at(call.out, begin), group.ranks(),
                  part_length(call.in_blocks().length(self), begin, at_once) / size, [&](uint32_t rank) -> const void* {
                    return rank == self ? own : group.slot_in(rank, turn) + self * at_once;
                  });
    group.all_have_begun();
  }
  co_return 0;
}

}  // namespace nupa::ccl::shm
