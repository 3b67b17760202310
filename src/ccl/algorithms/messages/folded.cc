// SPDX-License-Identifier: Apache-2.0
#include "ccl/algorithms/messages/folded.h"

#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::messages {

CollectiveTask fold(ChannelGroup& group, const Folded& folded, std::byte* sum, size_t bytes, const Reducer& reducer) {
  const uint32_t rank = group.rank();
  if (!folded.is_in_pair(rank) || bytes == 0) co_return 0;
  if (rank % 2 == 0) co_return co_await send_array(group, rank + 1, sum, bytes);
  co_return co_await flow(group, {rank - 1, nullptr, 0, rank - 1, sum, bytes, &reducer, true});
}

CollectiveTask unfold(ChannelGroup& group, const Folded& folded, std::byte* sum, size_t bytes) {
  const uint32_t rank = group.rank();
  if (!folded.is_in_pair(rank) || bytes == 0) co_return 0;
  if (rank % 2 == 1) co_return co_await send_array(group, rank - 1, sum, bytes);
  co_return co_await receive_array(group, rank + 1, sum, bytes);
}

}  // namespace nupa::ccl::messages
