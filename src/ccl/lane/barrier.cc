#include <cerrno>

#include "ccl/lane/algorithms.h"
#include "ccl/lane/transfer.h"

namespace nupa::ccl::lanes {

/// Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization": in round k each rank tells the one 2^k
/// after it and hears from the one 2^k before it.
Steps barrier(LaneGroup& group) {
  for (uint32_t distance = 1; distance < group.ranks(); distance *= 2) {
    const uint32_t to = (group.rank() + distance) % group.ranks();
    const uint32_t from = (group.rank() + group.ranks() - distance) % group.ranks();
    if (const int error = co_await send_array(group, to, nullptr, 0); error != 0) co_return error;
    if (const int error = co_await receive_array(group, from, nullptr, 0); error != 0) co_return error;
  }
  co_return 0;
}

Steps depart(LaneGroup& group) {
  // By now whoever has got anything from this rank knows it, too.
  std::vector<uint32_t> others;
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (rank != group.rank() && group.is_used(rank)) others.push_back(rank);
  for (const uint32_t rank : others)
    if (const int error = co_await send_array(group, rank, nullptr, 0); error != 0) co_return error;
  for (const uint32_t rank : others) {
    Lane& lane = group.lane(rank);
    if (const int error = co_await lane.can_receive(); error != 0) co_return error;
    lane.pop_last();
  }
  for (const uint32_t rank : others)
    if (const int error = co_await group.lane(rank).all_arrived(); error != 0) co_return error;
  co_return 0;
}

}  // namespace nupa::ccl::lanes
