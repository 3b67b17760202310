// SPDX-License-Identifier: Apache-2.0
/// all_to_all with one partner after the other. Thakur, Rabenseifner and Gropp, "Optimization of collective
/// communication operations in MPICH" (2005), 4.3.
#include <algorithm>
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::messages {

CollectiveTask all_to_all_pairwise(ChannelGroup& group, const Call& call) {
  const uint32_t self = group.rank();
  const uint32_t ranks = group.ranks();
  std::vector<std::byte> copy;
  const void* in = call.in;
  if (call.in == call.out) {
    // Received blocks would overwrite blocks that are not sent yet.
    size_t bytes = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank)
      bytes = std::max(bytes, call.in_blocks().offset(rank) + call.in_blocks().length(rank));
    copy.assign(static_cast<const std::byte*>(in), static_cast<const std::byte*>(in) + bytes);
    in = copy.data();
  }
  copy_array(bytes_at(call.out, call.out_blocks().offset(self)), bytes_at(in, call.in_blocks().offset(self)),
             call.in_blocks().length(self));
  ZeroCopySends zero_copy_sends(group, in == call.in,
                                call.in_blocks().longest(ranks));  // the copy is freed when an error ends the call
  for (uint32_t distance = 1; distance < ranks; ++distance) {
    const uint32_t to = (self + distance) % ranks;
    const uint32_t from = (self + ranks - distance) % ranks;
    const Flow pair{to,
                    bytes_at(in, call.in_blocks().offset(to)),
                    call.in_blocks().length(to),
                    from,
                    bytes_at(call.out, call.out_blocks().offset(from)),
                    call.out_blocks().length(from),
                    nullptr,
                    false,
                    &zero_copy_sends};
    if (const int error = co_await flow(group, pair); error != 0) co_return error;
  }
  co_return co_await zero_copy_sends.settle();
}

}  // namespace nupa::ccl::messages
