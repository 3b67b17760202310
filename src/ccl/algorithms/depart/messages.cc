// SPDX-License-Identifier: Apache-2.0
/// The last operation of a communicator whose ranks exchange messages.
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::messages {

CollectiveTask depart(ChannelGroup& group) {
  // After the barrier, is_used() is the same on both ranks of a pair.
  std::vector<uint32_t> others;
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (rank != group.rank() && group.is_used(rank)) others.push_back(rank);
  for (const uint32_t rank : others)
    if (const int error = co_await send_array(group, rank, nullptr, 0); error != 0) co_return error;
  for (const uint32_t rank : others) {
    MessageChannel& channel = group.channel(rank);
    if (const int error = co_await channel.can_receive(); error != 0) co_return error;
    channel.pop_last();
  }
  for (const uint32_t rank : others)
    if (const int error = co_await group.channel(rank).all_arrived(); error != 0) co_return error;
  co_return 0;
}

}  // namespace nupa::ccl::messages
