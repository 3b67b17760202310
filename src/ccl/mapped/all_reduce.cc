#include "ccl/mapped/algorithms.h"
#include "ccl/mapped/parts.h"

namespace nupa::ccl::mapped {

Steps all_reduce_lines(MappedGroup& group, ReduceTask task) {
  Factors factors;
  if (has_factors(task.reducer))
    if (const int error = co_await exchange_factors(group, task.reducer, &factors); error != 0) co_return error;
  const uint32_t step = group.begin(1) + 1;
  const uint32_t turn = group.next_turn(step);
  if (!group.may_write())
    if (const int error = co_await until_all_left(group); error != 0) co_return error;
  group.write_line(turn, task.in, task.bytes(), step);
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (const int error = co_await group.wrote_line(rank, turn, step); error != 0) co_return error;
  combine_ranks(task.reducer, factors, task.out, group.ranks(), task.elements,
                [&](uint32_t rank) -> const void* { return group.line_of(rank, turn).payload; });
  group.all_met();
  co_return 0;
}

Steps all_reduce_slots(MappedGroup& group, ReduceTask task) {
  Factors factors;
  if (has_factors(task.reducer))
    if (const int error = co_await exchange_factors(group, task.reducer, &factors); error != 0) co_return error;
  const size_t size = task.reducer.element_bytes();
  const size_t at_once = group.slot_bytes() / size;
  for (size_t begin = 0; begin < task.elements; begin += at_once) {
    const size_t elements = part_length(task.elements, begin, at_once);
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    if (!group.may_write())
      if (const int error = co_await until_all_left(group); error != 0) co_return error;
    const std::byte* const in = bytes_at(task.in, begin * size);
    copy_array(group.slot_in(group.rank(), turn), in, elements * size);
    group.tell(step);
    for (uint32_t rank = 0; rank < group.ranks(); ++rank)
      if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
    combine_ranks(task.reducer, factors, bytes_at(task.out, begin * size), group.ranks(), elements,
                  [&](uint32_t rank) -> const void* { return rank == group.rank() ? in : group.slot_in(rank, turn); });
    group.all_met();
  }
  co_return 0;
}

Steps all_reduce_slices(MappedGroup& group, ReduceTask task) {
  Factors factors;
  if (has_factors(task.reducer))
    if (const int error = co_await exchange_factors(group, task.reducer, &factors); error != 0) co_return error;
  const uint32_t ranks = group.ranks();
  const size_t size = task.reducer.element_bytes();
  const size_t at_once = group.slot_bytes() / size;
  for (size_t begin = 0; begin < task.elements; begin += at_once) {
    const size_t elements = part_length(task.elements, begin, at_once);
    const uint32_t copied_in = group.begin(2) + 1;
    const uint32_t reduced = copied_in + 1;
    const uint32_t turn = group.next_turn(copied_in);
    if (!group.may_write())
      if (const int error = co_await until_all_left(group); error != 0) co_return error;
    copy_array(group.slot_in(group.rank(), turn), bytes_at(task.in, begin * size), elements * size);
    group.tell(copied_in);
    for (uint32_t rank = 0; rank < ranks; ++rank)
      if (const int error = co_await group.reached(rank, copied_in); error != 0) co_return error;
    const Slice mine = slice_of(group.rank(), ranks, elements, size);
    combine_ranks(task.reducer, factors, group.slot_out(group.rank(), turn) + mine.begin * size, ranks, mine.length(),
                  [&](uint32_t rank) -> const void* { return group.slot_in(rank, turn) + mine.begin * size; });
    group.tell(reduced);
    for (uint32_t i = 0; i < ranks; ++i) {
      // Each begins with its own, so that not all read from the same one.
      const uint32_t rank = (group.rank() + i) % ranks;
      if (const int error = co_await group.reached(rank, reduced); error != 0) co_return error;
      const Slice slice = slice_of(rank, ranks, elements, size);
      copy_array(bytes_at(task.out, (begin + slice.begin) * size), group.slot_out(rank, turn) + slice.begin * size,
                 slice.length() * size);
    }
    group.all_met();
  }
  co_return 0;
}

}  // namespace nupa::ccl::mapped
