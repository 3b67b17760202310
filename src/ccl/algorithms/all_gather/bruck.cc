// SPDX-License-Identifier: Apache-2.0
/// all_gather in log2(N) messages. Bruck et al., "Efficient algorithms for all-to-all communications in multiport
/// message-passing systems" (1997).
#include <algorithm>
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::messages {

/// Bruck et al., "Efficient algorithms for all-to-all communications": each rank begins with its own block. In each
/// round it gets as many blocks as it has from the rank 2^k after it.
CollectiveTask all_gather_bruck(ChannelGroup& group, const Call& call) {
  const uint32_t ranks = group.ranks();
  const size_t block = call.bytes();
  std::vector<std::byte> all(ranks * block);
  copy_array(all.data(), call.in, block);
  for (uint32_t have = 1; have < ranks && block > 0; have *= 2) {
    const uint32_t more = std::min(have, ranks - have);
    const Flow round{(group.rank() + ranks - have) % ranks,
                     all.data(),
                     more * block,
                     (group.rank() + have) % ranks,
                     all.data() + have * block,
                     more * block};
    if (const int error = co_await flow(group, round); error != 0) co_return error;
  }
  for (uint32_t i = 0; i < ranks; ++i)
    copy_array(bytes_at(call.out, call.out_blocks().offset((group.rank() + i) % ranks)), all.data() + i * block, block);
  co_return 0;
}

}  // namespace nupa::ccl::messages
