// SPDX-License-Identifier: Apache-2.0
/// all_reduce by recursive doubling. Thakur, Rabenseifner and Gropp, "Optimization of collective communication
/// operations in MPICH" (2005), 4.5.
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/folded.h"
#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::messages {

CollectiveTask all_reduce_doubling(ChannelGroup& group, const Call& call) {
  auto* const sum = static_cast<std::byte*>(call.out);
  const Reducer reducer = partial(call.reducer);
  const Folded folded(group);
  begin_with(call.reducer, sum, call.in, call.elements);
  if (const int error = co_await fold(group, folded, sum, call.bytes(), reducer); error != 0) co_return error;
  for (uint32_t distance = 1; folded.place != kNoRank && distance < folded.power; distance *= 2) {
    const uint32_t other = folded.place ^ distance;
    const uint32_t rank = folded.rank_at(other);
    const Flow both{rank, sum, call.bytes(), rank, sum, call.bytes(), &reducer, other < folded.place};
    if (const int error = co_await flow(group, both); error != 0) co_return error;
  }
  if (folded.place != kNoRank) end_with(call.reducer, sum, call.elements);
  co_return co_await unfold(group, folded, sum, call.bytes());
}

}  // namespace nupa::ccl::messages
