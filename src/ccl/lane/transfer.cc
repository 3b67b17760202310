#include "ccl/lane/transfer.h"

#include <cerrno>

#include "ccl/lane/algorithms.h"

namespace nupa::ccl::lanes {

Steps reach(LaneGroup& group, uint32_t rank) {
  while (!group.has(rank))
    if (const int error = co_await group.ready(rank); error != 0) co_return error;
  co_return 0;
}

Steps reach_all(LaneGroup& group) {
  // All are begun before one is waited for.
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (rank != group.rank()) group.has(rank);
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (rank != group.rank() && !group.has(rank))
      if (const int error = co_await reach(group, rank); error != 0) co_return error;
  co_return 0;
}

Steps send_array(LaneGroup& group, uint32_t to, const void* data, size_t bytes) {
  if (!group.has(to))
    if (const int error = co_await reach(group, to); error != 0) co_return error;
  Lane& lane = group.lane(to);
  size_t begin = 0;
  do {
    if (const int error = co_await lane.can_send(); error != 0) co_return error;
    const size_t length = part_length(bytes, begin, lane.piece_bytes());
    send_piece(lane, bytes_at(data, begin), length);
    begin += length;
  } while (begin < bytes);
  co_return 0;
}

Steps receive_array(LaneGroup& group, uint32_t from, void* data, size_t bytes) {
  if (!group.has(from))
    if (const int error = co_await reach(group, from); error != 0) co_return error;
  Lane& lane = group.lane(from);
  size_t begin = 0;
  do {
    if (const int error = co_await lane.can_receive(); error != 0) co_return error;
    const size_t length = part_length(bytes, begin, lane.piece_bytes());
    if (const int error = take_piece(lane, bytes_at(data, begin), length); error != 0) co_return error;
    begin += length;
  } while (begin < bytes);
  co_return 0;
}

Steps exchange_factors(LaneGroup& group, const Reducer& reducer, Factors* factors) {
  factors->of_rank.resize(group.ranks());
  uint64_t mine = 0;
  std::memcpy(&mine, reducer.factor, reducer.element_bytes());
  GatherTask task{};
  task.in = &mine;
  task.bytes = sizeof mine;
  task.out = factors->of_rank.data();
  task.blocks.each = sizeof mine;
  co_return co_await all_gather_direct(group, task);
}

}  // namespace nupa::ccl::lanes
