#include <cerrno>
#include <cstring>
#include <vector>

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

namespace {

/// Reduced at once into this rank's array and then, while it is in the cache, copied into the others'.
constexpr size_t kWindowBlock = 32768;

/// What a rank says of its arrays when an operation begins.
struct Arrays {
  Place in;
  Place out;
  bool are_mapped() const { return in.serial != 0 && out.serial != 0; }
};
static_assert(sizeof(Arrays) <= FlagLine::kPayload);

Arrays arrays_of(const MappedGroup& group, uint32_t rank, uint32_t turn) {
  Arrays arrays;
  std::memcpy(&arrays, group.line_of(rank, turn).payload, sizeof arrays);
  return arrays;
}

/// All ranks' arrays of one operation, as this rank has them mapped.
struct Mapped {
  std::vector<const std::byte*> in;
  std::vector<std::byte*> out;
};

/// False: one cannot be mapped.
bool map_all(MappedGroup& group, const ReduceTask& task, uint32_t turn, Mapped* mapped) {
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (rank == group.rank()) {
      mapped->in.push_back(static_cast<const std::byte*>(task.in));
      mapped->out.push_back(static_cast<std::byte*>(task.out));
      continue;
    }
    const Arrays arrays = arrays_of(group, rank, turn);
    mapped->in.push_back(group.windows()->find(rank, arrays.in));
    mapped->out.push_back(group.windows()->find(rank, arrays.out));
    if (mapped->in.back() == nullptr || mapped->out.back() == nullptr) return false;
  }
  return true;
}

/// Nobody else reads or writes this rank's slice of any array.
void reduce_windows(MappedGroup& group, const ReduceTask& task, const Factors& factors, const Mapped& mapped) {
  const size_t size = task.reducer.element_bytes();
  const Slice mine = slice_of(group.rank(), group.ranks(), task.elements, size);
  for (size_t at = mine.begin; at < mine.end; at += kWindowBlock / size) {
    const size_t elements = std::min(mine.end - at, kWindowBlock / size);
    std::byte* const own = mapped.out[group.rank()] + at * size;
    combine_ranks(task.reducer, factors, own, group.ranks(), elements,
                  [&](uint32_t rank) -> const void* { return mapped.in[rank] + at * size; });
    for (uint32_t rank = 0; rank < group.ranks(); ++rank)
      if (rank != group.rank()) std::memcpy(mapped.out[rank] + at * size, own, elements * size);
  }
}

/// One part of the arrays by way of slots. Step `copied_in` is told and reached already.
Steps reduce_part(MappedGroup& group, const ReduceTask& task, const Factors& factors, size_t begin, size_t elements,
                  uint32_t turn, uint32_t reduced) {
  const uint32_t ranks = group.ranks();
  const size_t size = task.reducer.element_bytes();
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
  co_return 0;
}

}  // namespace

Steps all_reduce_slices(MappedGroup& group, ReduceTask task) {
  Factors factors;
  if (has_factors(task.reducer))
    if (const int error = co_await exchange_factors(group, task.reducer, &factors); error != 0) co_return error;
  const size_t size = task.reducer.element_bytes();
  const size_t at_once = group.slot_bytes() / size;
  for (size_t begin = 0; begin < task.elements; begin += at_once) {
    const size_t elements = part_length(task.elements, begin, at_once);
    const uint32_t copied_in = group.begin(2) + 1;
    const uint32_t reduced = copied_in + 1;
    const uint32_t turn = group.next_turn(copied_in);
    if (!group.may_write())
      if (const int error = co_await until_all_left(group); error != 0) co_return error;
    const bool says_where = begin == 0 && group.windows() != nullptr;
    Arrays own;
    if (says_where)
      own = {group.windows()->publish(task.in, task.bytes()), group.windows()->publish(task.out, task.bytes())};
    if (!own.are_mapped())
      copy_array(group.slot_in(group.rank(), turn), bytes_at(task.in, begin * size), elements * size);
    if (says_where)
      group.write_line(turn, &own, sizeof own, copied_in);
    else
      group.tell(copied_in);
    bool all_mapped = says_where;
    for (uint32_t rank = 0; says_where && rank < group.ranks(); ++rank) {
      if (const int error = co_await group.wrote_line(rank, turn, copied_in); error != 0) co_return error;
      all_mapped = all_mapped && arrays_of(group, rank, turn).are_mapped();
    }
    if (all_mapped) {
      Mapped mapped;
      if (!map_all(group, task, turn, &mapped)) co_return EFAULT;
      reduce_windows(group, task, factors, mapped);
      group.tell(reduced);
      if (const int error = co_await until_all_reached(group, reduced); error != 0) co_return error;
      group.all_met();
      co_return 0;
    }
    if (own.are_mapped()) {
      // Others' are not: this rank's elements go by its slot, too.
      copy_array(group.slot_in(group.rank(), turn), bytes_at(task.in, begin * size), elements * size);
      group.tell(copied_in);
    }
    for (uint32_t rank = 0; rank < group.ranks(); ++rank)
      if (!says_where || arrays_of(group, rank, turn).are_mapped())
        if (const int error = co_await group.reached(rank, copied_in); error != 0) co_return error;
    if (const int error = co_await reduce_part(group, task, factors, begin, elements, turn, reduced); error != 0)
      co_return error;
    group.all_met();
  }
  co_return 0;
}

}  // namespace nupa::ccl::mapped
