#include <cerrno>

#include "ccl/lane/algorithms.h"
#include "ccl/lane/direct.h"
#include "ccl/lane/transfer.h"

namespace nupa::ccl::lanes {

Steps pieces_of(LaneGroup& group, uint32_t begin, uint32_t end, size_t bytes) {
  for (uint32_t rank = begin; rank < end; ++rank) {
    if (rank == group.rank()) continue;
    Lane& lane = group.lane(rank);
    if (const int error = co_await lane.can_receive(); error != 0) co_return error;
    if (lane.front_bytes() != bytes) co_return EPROTO;
  }
  co_return 0;
}

void combine_pieces(LaneGroup& group, const Reducer& reducer, const Factors& factors, void* out, const void* own,
                    uint32_t count, size_t elements) {
  combine_ranks(reducer, factors, out, count, elements,
                [&](uint32_t rank) -> const void* { return rank == group.rank() ? own : group.lane(rank).front(); });
  for (uint32_t rank = 0; rank < count; ++rank)
    if (rank != group.rank()) group.lane(rank).pop();
}

size_t elements_at_once(LaneGroup& group, const Reducer& reducer, size_t all) {
  if (group.ranks() == 1) return std::max<size_t>(all, 1);
  return group.lane(group.rank() == 0 ? 1 : 0).piece_bytes() / reducer.element_bytes();
}

Steps send_to_all(LaneGroup& group, Loans& loans, const void* data, size_t bytes) {
  for (uint32_t i = 1; i < group.ranks(); ++i) {
    Lane& lane = group.lane((group.rank() + i) % group.ranks());
    if (const int error = co_await lane.can_send(); error != 0) co_return error;
    loans.send(lane, data, bytes);
  }
  co_return 0;
}

Steps all_reduce_one_shot(LaneGroup& group, ReduceTask task) {
  if (const int error = co_await reach_all(group); error != 0) co_return error;
  Factors factors;
  if (has_factors(task.reducer))
    if (const int error = co_await exchange_factors(group, task.reducer, &factors); error != 0) co_return error;
  const size_t size = task.reducer.element_bytes();
  const size_t at_once = elements_at_once(group, task.reducer, task.elements);
  Loans loans(group, task.in != task.out, task.bytes());
  size_t sent = 0;
  for (size_t begin = 0; begin < task.elements; begin += at_once) {
    for (; sent < task.elements && sent < begin + group.ahead() * at_once; sent += at_once) {
      const size_t bytes = part_length(task.elements, sent, at_once) * size;
      if (const int error = co_await send_to_all(group, loans, bytes_at(task.in, sent * size), bytes); error != 0)
        co_return error;
    }
    const size_t elements = part_length(task.elements, begin, at_once);
    if (const int error = co_await pieces_of(group, 0, group.ranks(), elements * size); error != 0) co_return error;
    combine_pieces(group, task.reducer, factors, bytes_at(task.out, begin * size), bytes_at(task.in, begin * size),
                   group.ranks(), elements);
  }
  co_return co_await loans.settle();
}

Steps reduce_direct(LaneGroup& group, ReduceTask task) {
  if (const int error = co_await reach_all(group); error != 0) co_return error;
  Factors factors;
  if (has_factors(task.reducer))
    if (const int error = co_await exchange_factors(group, task.reducer, &factors); error != 0) co_return error;
  if (group.rank() != task.root) {
    if (task.elements == 0) co_return 0;
    Loans loans(group, true, task.bytes());
    if (const int error = co_await send_array(group, task.root, task.in, task.bytes(), &loans); error != 0)
      co_return error;
    co_return co_await loans.settle();
  }
  const size_t size = task.reducer.element_bytes();
  const size_t at_once = elements_at_once(group, task.reducer, task.elements);
  for (size_t begin = 0; begin < task.elements; begin += at_once) {
    const size_t elements = part_length(task.elements, begin, at_once);
    if (const int error = co_await pieces_of(group, 0, group.ranks(), elements * size); error != 0) co_return error;
    combine_pieces(group, task.reducer, factors, bytes_at(task.out, begin * size), bytes_at(task.in, begin * size),
                   group.ranks(), elements);
  }
  co_return 0;
}

Steps reduce_scatter_direct(LaneGroup& group, ReduceTask task) {
  if (const int error = co_await reach_all(group); error != 0) co_return error;
  Factors factors;
  if (has_factors(task.reducer))
    if (const int error = co_await exchange_factors(group, task.reducer, &factors); error != 0) co_return error;
  const uint32_t self = group.rank();
  const size_t size = task.reducer.element_bytes();
  const size_t longest = task.blocks.longest(group.ranks()) / size;
  const size_t at_once = elements_at_once(group, task.reducer, longest);
  // In place only the own block is written to, which nobody is sent.
  Loans loans(group, true, task.blocks.longest(group.ranks()));
  size_t sent = 0;
  for (size_t begin = 0; begin < longest; begin += at_once) {
    for (; sent < longest && sent < begin + group.ahead() * at_once; sent += at_once)
      for (uint32_t i = 1; i < group.ranks(); ++i) {
        const uint32_t rank = (self + i) % group.ranks();
        const size_t bytes = part_length(task.blocks.length(rank), sent * size, at_once * size);
        if (bytes == 0) continue;
        Lane& lane = group.lane(rank);
        if (const int error = co_await lane.can_send(); error != 0) co_return error;
        loans.send(lane, bytes_at(task.in, task.blocks.offset(rank) + sent * size), bytes);
      }
    const size_t bytes = part_length(task.blocks.length(self), begin * size, at_once * size);
    if (bytes == 0) continue;
    if (const int error = co_await pieces_of(group, 0, group.ranks(), bytes); error != 0) co_return error;
    combine_pieces(group, task.reducer, factors, bytes_at(task.out, begin * size),
                   bytes_at(task.in, task.blocks.offset(self) + begin * size), group.ranks(), bytes / size);
  }
  co_return co_await loans.settle();
}

Steps scan_direct(LaneGroup& group, ReduceTask task) {
  if (const int error = co_await reach_all(group); error != 0) co_return error;
  Factors factors;
  if (has_factors(task.reducer))
    if (const int error = co_await exchange_factors(group, task.reducer, &factors); error != 0) co_return error;
  const uint32_t self = group.rank();
  const size_t size = task.reducer.element_bytes();
  const size_t at_once = elements_at_once(group, task.reducer, task.elements);
  for (size_t begin = 0; begin < task.elements; begin += at_once) {
    const size_t elements = part_length(task.elements, begin, at_once);
    const std::byte* const own = bytes_at(task.in, begin * size);
    for (uint32_t rank = self + 1; rank < group.ranks(); ++rank) {
      Lane& lane = group.lane(rank);
      if (const int error = co_await lane.can_send(); error != 0) co_return error;
      send_piece(lane, own, elements * size);
    }
    if (const int error = co_await pieces_of(group, 0, self, elements * size); error != 0) co_return error;
    std::byte* const to = bytes_at(task.out, begin * size);
    if (!task.exclusive)
      combine_pieces(group, task.reducer, factors, to, own, self + 1, elements);
    else if (self > 0)
      combine_pieces(group, task.reducer, factors, to, own, self, elements);
  }
  co_return 0;
}

}  // namespace nupa::ccl::lanes
