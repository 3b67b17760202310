// SPDX-License-Identifier: Apache-2.0
/// reduce: each rank reduces a chunk of all slots, and the root copies the chunks. If arrays are mapped, each rank
/// reduces its chunk into the root's array. Hashmi et al., "Designing efficient shared address space reduction
/// collectives for multi-/many-cores" (2018).
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"
#include "ccl/algorithms/shm/shared_arrays.h"

namespace nupa::ccl::shm {

CollectiveTask reduce_slices(ShmGroup& group, const Call& call) {
  Factors factors;
  if (has_factors(call.reducer))
    if (const int error = co_await exchange_factors(group, call.reducer, &factors); error != 0) co_return error;
  const uint32_t self = group.rank();
  const uint32_t ranks = group.ranks();
  const bool is_root = self == call.root;
  const size_t size = call.reducer.element_bytes();
  if (may_share(group, call.bytes())) {
    SharedArrays arrays;
    const Shown shown_out{call.out, call.bytes(), is_root};
    if (const int error = co_await show_arrays(group, {call.in, call.bytes(), true}, shown_out, &arrays); error != 0)
      co_return error;
    if (arrays.are_mapped) {
      const Slice mine = slice_of(self, ranks, call.elements, size);
      combine_ranks(call.reducer, factors, arrays.out[call.root] + mine.begin * size, ranks, mine.length(),
                    [&](uint32_t rank) -> const void* { return arrays.in[rank] + mine.begin * size; });
      co_return co_await barrier(group);
    }
  }
  const size_t at_once = group.slot_bytes() / size;
  for (size_t begin = 0; begin < call.elements; begin += at_once) {
    const size_t elements = part_length(call.elements, begin, at_once);
    const uint32_t copied_in = group.begin(2) + 1;
    const uint32_t reduced = copied_in + 1;
    const uint32_t turn = group.next_turn(copied_in);
    const std::byte* const in = bytes_at(call.in, begin * size);
    const Slice mine = slice_of(self, ranks, elements, size);
    if (!group.may_write(kTurns))
      if (const int error = co_await until_all_left(group, kTurns); error != 0) co_return error;
    put_slices(group, turn, in, mine, elements, size);
    group.publish(copied_in);
    if (const int error = co_await until_all_reached(group, copied_in); error != 0) co_return error;
    group.all_have_begun();
    std::byte* const reduced_to = is_root ? bytes_at(call.out, begin * size) : group.slot_out(self, turn);
    combine_ranks(call.reducer, factors, reduced_to + mine.begin * size, ranks, mine.length(),
                  [&](uint32_t rank) -> const void* {
                    return (rank == self ? in : group.slot_in(rank, turn)) + mine.begin * size;
                  });
    group.publish(reduced);
    for (uint32_t rank = 0; is_root && rank < ranks; ++rank) {
      if (rank == self) continue;
      if (const int error = co_await group.reached(rank, reduced); error != 0) co_return error;
      const Slice slice = slice_of(rank, ranks, elements, size);
      copy_array(bytes_at(call.out, (begin + slice.begin) * size), group.slot_out(rank, turn) + slice.begin * size,
                 slice.length() * size);
    }
  }
  co_return 0;
}

}  // namespace nupa::ccl::shm
