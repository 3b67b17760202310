// SPDX-License-Identifier: Apache-2.0
/// all_reduce: each rank reduces its chunk of all slots, or of all mapped arrays. Hashmi et al., "Designing efficient
/// shared address space reduction collectives for multi-/many-cores" (2018).
#include <algorithm>
#include <cstring>

#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"
#include "ccl/algorithms/shm/shared_arrays.h"

namespace nupa::ccl::shm {
namespace {

/// In bytes. A block is reduced into this rank's array and then copied to where the others need it while it is in the
/// cache.
constexpr size_t kBlock = 16384;

/// Reduces this rank's chunk of the arrays that `data_of` returns, into its own array, and passes it to `hand_on` in
/// blocks.
template <class DataOf, class HandOn>
void reduce_slice(ShmGroup& group, const Call& call, const Factors& factors, std::byte* out, const Slice& slice,
                  const DataOf& data_of, const HandOn& hand_on) {
  const size_t size = call.reducer.element_bytes();
  for (size_t at = slice.begin; at < slice.end; at += kBlock / size) {
    const size_t elements = std::min(slice.end - at, kBlock / size);
    combine_ranks(call.reducer, factors, out + at * size, group.ranks(), elements,
                  [&](uint32_t rank) -> const void* { return data_of(rank) + at * size; });
    hand_on(at * size, elements * size);
  }
}

/// No other rank reads or writes this rank's chunk of any array.
CollectiveTask reduce_shared(ShmGroup& group, const Call& call, const Factors& factors, const SharedArrays& arrays) {
  std::byte* const own = arrays.out[group.rank()];
  const Slice mine = slice_of(group.rank(), group.ranks(), call.elements, call.reducer.element_bytes());
  reduce_slice(
      group, call, factors, own, mine, [&](uint32_t rank) { return arrays.in[rank]; },
      [&](size_t at, size_t bytes) {
        for (uint32_t rank = 0; rank < group.ranks(); ++rank)
          if (rank != group.rank()) std::memcpy(arrays.out[rank] + at, own + at, bytes);
      });
  co_return co_await barrier(group);
}

/// Reduces some of the elements through slots.
CollectiveTask reduce_part(ShmGroup& group, const Call& call, const Factors& factors, size_t begin, size_t elements) {
  const uint32_t self = group.rank();
  const uint32_t ranks = group.ranks();
  const size_t size = call.reducer.element_bytes();
  const std::byte* const in = bytes_at(call.in, begin * size);
  std::byte* const out = bytes_at(call.out, begin * size);
  const uint32_t copied_in = group.begin(2) + 1;
  const uint32_t reduced = copied_in + 1;
  const uint32_t turn = group.next_turn(copied_in);
  const Slice mine = slice_of(self, ranks, elements, size);
  if (!group.may_write(kTurns))
    if (const int error = co_await until_all_left(group, kTurns); error != 0) co_return error;
  put_slices(group, turn, in, mine, elements, size);
  group.publish(copied_in);
  if (const int error = co_await until_all_reached(group, copied_in); error != 0) co_return error;
  reduce_slice(
      group, call, factors, out, mine,
      [&](uint32_t rank) -> const std::byte* { return rank == self ? in : group.slot_in(rank, turn); },
      [&](size_t at, size_t bytes) { std::memcpy(group.slot_out(self, turn) + at, out + at, bytes); });
  group.publish(reduced);
  for (uint32_t i = 1; i < ranks; ++i) {
    // Each rank begins with another one, so that not all read from the same one.
    const uint32_t rank = (self + i) % ranks;
    if (const int error = co_await group.reached(rank, reduced); error != 0) co_return error;
    const Slice slice = slice_of(rank, ranks, elements, size);
    copy_array(out + slice.begin * size, group.slot_out(rank, turn) + slice.begin * size, slice.length() * size);
  }
  group.all_have_begun();
  co_return 0;
}

}  // namespace

CollectiveTask all_reduce_slices(ShmGroup& group, const Call& call) {
  Factors factors;
  if (has_factors(call.reducer))
    if (const int error = co_await exchange_factors(group, call.reducer, &factors); error != 0) co_return error;
  if (may_share(group, call.bytes())) {
    SharedArrays arrays;
    const int error =
        co_await show_arrays(group, {call.in, call.bytes(), true}, {call.out, call.bytes(), true}, &arrays);
    if (error != 0) co_return error;
    if (arrays.are_mapped) co_return co_await reduce_shared(group, call, factors, arrays);
  }
  const size_t at_once = group.slot_bytes() / call.reducer.element_bytes();
  for (size_t begin = 0; begin < call.elements; begin += at_once) {
    const int error = co_await reduce_part(group, call, factors, begin, part_length(call.elements, begin, at_once));
    if (error != 0) co_return error;
  }
  co_return 0;
}

}  // namespace nupa::ccl::shm
