// SPDX-License-Identifier: Apache-2.0
/// scatter: the root sends to each rank. No paper.
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::messages {

CollectiveTask scatter_direct(ChannelGroup& group, const Call& call) {
  if (group.rank() != call.root) co_return co_await receive_array(group, call.root, call.out, call.bytes());
  copy_unless_same(call.out, bytes_at(call.in, call.in_blocks().offset(group.rank())), call.bytes());
  ZeroCopySends zero_copy_sends(group, true, call.in_blocks().longest(group.ranks()));
  for (uint32_t i = 1; i < group.ranks(); ++i) {
    const uint32_t rank = (call.root + i) % group.ranks();
    const void* const from = bytes_at(call.in, call.in_blocks().offset(rank));
    const int error = co_await send_array(group, rank, from, call.in_blocks().length(rank), &zero_copy_sends);
    if (error != 0) co_return error;
  }
  co_return co_await zero_copy_sends.settle();
}

}  // namespace nupa::ccl::messages
