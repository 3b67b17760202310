#include "ccl/mapped/algorithms.h"
#include "ccl/mapped/parts.h"
#include "ccl/mapped/shared_arrays.h"

namespace nupa::ccl::mapped {

Steps reduce_slots(MappedGroup& group, ReduceTask task) {
  Factors factors;
  if (has_factors(task.reducer))
    if (const int error = co_await exchange_factors(group, task.reducer, &factors); error != 0) co_return error;
  const size_t size = task.reducer.element_bytes();
  const MappedGroup::Slots slots = group.slots(task.bytes());
  const size_t at_once = slots.bytes / size;
  for (size_t begin = 0; begin < task.elements; begin += at_once) {
    const size_t elements = part_length(task.elements, begin, at_once);
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    const std::byte* const in = bytes_at(task.in, begin * size);
    if (group.rank() != task.root) {
      if (!group.may_write(slots.turns))
        if (const int error = co_await until_all_left(group, slots.turns); error != 0) co_return error;
      copy_array(group.slot_in(group.rank(), turn, slots), in, elements * size);
      group.tell(step);
      continue;
    }
    group.tell(step);
    if (const int error = co_await until_all_reached(group, step); error != 0) co_return error;
    combine_ranks(
        task.reducer, factors, bytes_at(task.out, begin * size), group.ranks(), elements,
        [&](uint32_t rank) -> const void* { return rank == group.rank() ? in : group.slot_in(rank, turn, slots); });
  }
  co_return 0;
}

Steps reduce_slices(MappedGroup& group, ReduceTask task) {
  Factors factors;
  if (has_factors(task.reducer))
    if (const int error = co_await exchange_factors(group, task.reducer, &factors); error != 0) co_return error;
  const uint32_t self = group.rank();
  const uint32_t ranks = group.ranks();
  const bool is_root = self == task.root;
  const size_t size = task.reducer.element_bytes();
  if (may_share(group, task.bytes())) {
    SharedArrays arrays;
    const Shown shown_out{task.out, task.bytes(), is_root};
    if (const int error = co_await show_arrays(group, {task.in, task.bytes(), true}, shown_out, &arrays); error != 0)
      co_return error;
    if (arrays.are_mapped) {
      const Slice mine = slice_of(self, ranks, task.elements, size);
      combine_ranks(task.reducer, factors, arrays.out[task.root] + mine.begin * size, ranks, mine.length(),
                    [&](uint32_t rank) -> const void* { return arrays.in[rank] + mine.begin * size; });
      co_return co_await barrier(group);
    }
  }
  const size_t at_once = group.slot_bytes() / size;
  for (size_t begin = 0; begin < task.elements; begin += at_once) {
    const size_t elements = part_length(task.elements, begin, at_once);
    const uint32_t copied_in = group.begin(2) + 1;
    const uint32_t reduced = copied_in + 1;
    const uint32_t turn = group.next_turn(copied_in);
    const std::byte* const in = bytes_at(task.in, begin * size);
    const Slice mine = slice_of(self, ranks, elements, size);
    if (!group.may_write(kTurns))
      if (const int error = co_await until_all_left(group, kTurns); error != 0) co_return error;
    put_slices(group, turn, in, mine, elements, size);
    group.tell(copied_in);
    if (const int error = co_await until_all_reached(group, copied_in); error != 0) co_return error;
    group.all_met();
    std::byte* const reduced_to = is_root ? bytes_at(task.out, begin * size) : group.slot_out(self, turn);
    combine_ranks(task.reducer, factors, reduced_to + mine.begin * size, ranks, mine.length(),
                  [&](uint32_t rank) -> const void* {
                    return (rank == self ? in : group.slot_in(rank, turn)) + mine.begin * size;
                  });
    group.tell(reduced);
    for (uint32_t rank = 0; is_root && rank < ranks; ++rank) {
      if (rank == self) continue;
      if (const int error = co_await group.reached(rank, reduced); error != 0) co_return error;
      const Slice slice = slice_of(rank, ranks, elements, size);
      copy_array(bytes_at(task.out, (begin + slice.begin) * size), group.slot_out(rank, turn) + slice.begin * size,
                 slice.length() * size);
    }
  }
  co_return 0;
}

Steps reduce_scatter(MappedGroup& group, ReduceTask task) {
  Factors factors;
  if (has_factors(task.reducer))
    if (const int error = co_await exchange_factors(group, task.reducer, &factors); error != 0) co_return error;
  const uint32_t self = group.rank();
  const size_t size = task.reducer.element_bytes();
  const size_t longest = task.blocks.longest(group.ranks());
  if (may_share(group, longest)) {
    SharedArrays arrays;
    // Results that lie in other ranks' blocks would be read by them.
    const bool is_apart = task.out != task.in || self == 0;
    const size_t bytes = task.blocks.offset(group.ranks() - 1) + task.blocks.length(group.ranks() - 1);
    const Shown shown{is_apart ? task.in : nullptr, bytes, true};
    if (const int error = co_await show_arrays(group, shown, {}, &arrays); error != 0) co_return error;
    if (arrays.are_mapped) {
      combine_ranks(task.reducer, factors, task.out, group.ranks(), task.blocks.length(self) / size,
                    [&](uint32_t rank) -> const void* { return arrays.in[rank] + task.blocks.offset(self); });
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
        copy_array(group.slot_in(self, turn) + rank * at_once, bytes_at(task.in, task.blocks.offset(rank) + begin),
                   part_length(task.blocks.length(rank), begin, at_once));
    group.tell(step);
    for (uint32_t rank = 0; rank < group.ranks(); ++rank)
      if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
    const std::byte* const own = bytes_at(task.in, task.blocks.offset(self) + begin);
    combine_ranks(task.reducer, factors, bytes_at(task.out, begin), group.ranks(),
                  part_length(task.blocks.length(self), begin, at_once) / size, [&](uint32_t rank) -> const void* {
                    return rank == self ? own : group.slot_in(rank, turn) + self * at_once;
                  });
    group.all_met();
  }
  co_return 0;
}

}  // namespace nupa::ccl::mapped
