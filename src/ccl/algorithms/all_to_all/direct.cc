// SPDX-License-Identifier: Apache-2.0
/// all_to_all: each rank sends to every other one. No paper.
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/direct.h"

namespace nupa::ccl::messages {

CollectiveTask all_to_all_direct(ChannelGroup& group, const Call& call) {
  const uint32_t self = group.rank();
  if (call.in != call.out)
    copy_array(bytes_at(call.out, call.out_blocks().offset(self)), bytes_at(call.in, call.in_blocks().offset(self)),
               call.in_blocks().length(self));
  co_return co_await exchange_blocks(group, call.in, call.in_blocks(), call.out, call.out_blocks(),
                                     call.in != call.out);
}

}  // namespace nupa::ccl::messages
