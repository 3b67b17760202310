// SPDX-License-Identifier: Apache-2.0
/// reduce_scatter: each rank sends every other one its block. No paper.
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/direct.h"

namespace nupa::ccl::messages {

CollectiveTask reduce_scatter_direct(ChannelGroup& group, const Call& call) {
  if (const int error = co_await reach_all(group); error != 0) co_return error;
  Factors factors;
  if (has_factors(call.reducer))
    if (const int error = co_await exchange_factors(group, call.reducer, &factors); error != 0) co_return error;
  const uint32_t self = group.rank();
  const size_t size = call.reducer.element_bytes();
  const size_t longest = call.in_blocks().longest(group.ranks()) / size;
  const size_t at_once = elements_at_once(group, call.reducer, longest);
  // In place, only this rank's own block is written, and that block is not sent.
  ZeroCopySends zero_copy_sends(group, true, call.in_blocks().longest(group.ranks()));
  size_t sent = 0;
  for (size_t begin = 0; begin < longest; begin += at_once) {
    for (; sent < longest && sent < begin + group.ahead() * at_once; sent += at_once)
      for (uint32_t i = 1; i < group.ranks(); ++i) {
        const uint32_t rank = (self + i) % group.ranks();
        const size_t bytes = part_length(call.in_blocks().length(rank), sent * size, at_once * size);
        if (bytes == 0) continue;
        MessageChannel& channel = group.channel(rank);
        if (const int error = co_await channel.can_send(); error != 0) co_return error;
        zero_copy_sends.send(channel, bytes_at(call.in, call.in_blocks().offset(rank) + sent * size), bytes);
      }
    const size_t bytes = part_length(call.in_blocks().length(self), begin * size, at_once * size);
    if (bytes == 0) continue;
    if (const int error = co_await fragments_of(group, 0, group.ranks(), bytes); error != 0) co_return error;
    combine_fragments(group, call.reducer, factors, bytes_at(call.out, begin * size),
                      bytes_at(call.in, call.in_blocks().offset(self) + begin * size), group.ranks(), bytes / size);
  }
  co_return co_await zero_copy_sends.settle();
}

}  // namespace nupa::ccl::messages
