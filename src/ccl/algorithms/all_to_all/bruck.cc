// SPDX-License-Identifier: Apache-2.0
/// all_to_all in log2(N) messages. Bruck et al., "Efficient algorithms for all-to-all communications in multiport
/// message-passing systems" (1997).
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::messages {

/// The same paper: block i has to travel i ranks. In round k the blocks whose distance has bit k travel 2^k ranks.
CollectiveTask all_to_all_bruck(ChannelGroup& group, const Call& call) {
  const uint32_t ranks = group.ranks();
  const size_t block = call.in_blocks().each;
  std::vector<std::byte> all(ranks * block);
  for (uint32_t i = 0; i < ranks; ++i)
    copy_array(all.data() + i * block, bytes_at(call.in, (group.rank() + i) % ranks * block), block);
  std::vector<std::byte> out;
  std::vector<std::byte> in;
  for (uint32_t bit = 1; bit < ranks && block > 0; bit *= 2) {
    out.clear();
    for (uint32_t i = 0; i < ranks; ++i)
      if ((i & bit) != 0) out.insert(out.end(), all.data() + i * block, all.data() + (i + 1) * block);
    in.resize(out.size());
    const Flow round{(group.rank() + bit) % ranks,         out.data(), out.size(),
                     (group.rank() + ranks - bit) % ranks, in.data(),  in.size()};
    if (const int error = co_await flow(group, round); error != 0) co_return error;
    size_t at = 0;
    for (uint32_t i = 0; i < ranks; ++i)
      if ((i & bit) != 0) copy_array(all.data() + i * block, in.data() + at++ * block, block);
  }
  for (uint32_t i = 0; i < ranks; ++i)
    copy_array(bytes_at(call.out, (group.rank() + ranks - i) % ranks * block), all.data() + i * block, block);
  co_return 0;
}

}  // namespace nupa::ccl::messages
