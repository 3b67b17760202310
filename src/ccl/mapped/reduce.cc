#include "ccl/mapped/algorithms.h"
#include "ccl/mapped/parts.h"

namespace nupa::ccl::mapped {

Steps reduce_slots(MappedGroup& group, ReduceTask task) {
  Factors factors;
  if (has_factors(task.reducer))
    if (const int error = co_await exchange_factors(group, task.reducer, &factors); error != 0) co_return error;
  const size_t size = task.reducer.element_bytes();
  const size_t at_once = group.slot_bytes() / size;
  for (size_t begin = 0; begin < task.elements; begin += at_once) {
    const size_t elements = part_length(task.elements, begin, at_once);
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    const std::byte* const in = bytes_at(task.in, begin * size);
    if (group.rank() != task.root) {
      if (!group.may_write())
        if (const int error = co_await until_all_left(group); error != 0) co_return error;
      copy_array(group.slot_in(group.rank(), turn), in, elements * size);
      group.tell(step);
      continue;
    }
    group.tell(step);
    if (const int error = co_await until_all_reached(group, step); error != 0) co_return error;
    combine_ranks(task.reducer, factors, bytes_at(task.out, begin * size), group.ranks(), elements,
                  [&](uint32_t rank) -> const void* { return rank == group.rank() ? in : group.slot_in(rank, turn); });
  }
  co_return 0;
}

Steps reduce_slices(MappedGroup& group, ReduceTask task) {
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
    if (const int error = co_await until_all_reached(group, copied_in); error != 0) co_return error;
    group.all_met();
    const Slice mine = slice_of(group.rank(), ranks, elements, size);
    combine_ranks(task.reducer, factors, group.slot_out(group.rank(), turn) + mine.begin * size, ranks, mine.length(),
                  [&](uint32_t rank) -> const void* { return group.slot_in(rank, turn) + mine.begin * size; });
    group.tell(reduced);
    for (uint32_t rank = 0; group.rank() == task.root && rank < ranks; ++rank) {
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
  const size_t at_once = part_of_each(group);
  const size_t longest = task.blocks.longest(group.ranks());
  for (size_t begin = 0; begin < longest; begin += at_once) {
    const uint32_t step = group.begin(1) + 1;
    const uint32_t turn = group.next_turn(step);
    if (!group.may_write())
      if (const int error = co_await until_all_left(group); error != 0) co_return error;
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
