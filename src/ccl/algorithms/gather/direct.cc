// SPDX-License-Identifier: Apache-2.0
/// gather: each rank sends to the root. No paper.
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::messages {

CollectiveTask gather_direct(ChannelGroup& group, const Call& call) {
  if (group.rank() != call.root) {
    ZeroCopySends zero_copy_sends(group, true, call.bytes());
    if (const int error = co_await send_array(group, call.root, call.in, call.bytes(), &zero_copy_sends); error != 0)
      co_return error;
    co_return co_await zero_copy_sends.settle();
  }
  copy_unless_same(bytes_at(call.out, call.out_blocks().offset(group.rank())), call.in, call.bytes());
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (rank == call.root) continue;
    void* const to = bytes_at(call.out, call.out_blocks().offset(rank));
    if (const int error = co_await receive_array(group, rank, to, call.out_blocks().length(rank)); error != 0)
      co_return error;
  }
  co_return 0;
}

}  // namespace nupa::ccl::messages
