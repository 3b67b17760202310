// SPDX-License-Identifier: Apache-2.0
/// broadcast: the root sends to each rank. No paper.
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::messages {

CollectiveTask broadcast_direct(ChannelGroup& group, const Call& call) {
  if (group.rank() != call.root) co_return co_await receive_array(group, call.root, call.out, call.bytes());
  if (const int error = co_await reach_all(group); error != 0) co_return error;
  ZeroCopySends zero_copy_sends(group, true, call.bytes());
  size_t begin = 0;
  size_t length = 0;
  do {
    for (uint32_t i = 1; i < group.ranks(); ++i) {
      MessageChannel& channel = group.channel((call.root + i) % group.ranks());
      if (const int error = co_await channel.can_send(); error != 0) co_return error;
      length = part_length(call.bytes(), begin, channel.fragment_bytes());
      zero_copy_sends.send(channel, bytes_at(call.out, begin), length);
    }
    begin += group.ranks() == 1 ? call.bytes() : length;
  } while (begin < call.bytes());
  co_return co_await zero_copy_sends.settle();
}

}  // namespace nupa::ccl::messages
