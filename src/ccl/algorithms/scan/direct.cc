// SPDX-License-Identifier: Apache-2.0
/// scan and exscan: each rank sends to those after it. No paper.
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/direct.h"

namespace nupa::ccl::messages {

CollectiveTask scan_direct(ChannelGroup& group, const Call& call) {
  if (const int error = co_await reach_all(group); error != 0) co_return error;
  Factors factors;
  if (has_factors(call.reducer))
    if (const int error = co_await exchange_factors(group, call.reducer, &factors); error != 0) co_return error;
  const uint32_t self = group.rank();
  const size_t size = call.reducer.element_bytes();
  const size_t at_once = elements_at_once(group, call.reducer, call.elements);
  for (size_t begin = 0; begin < call.elements; begin += at_once) {
    const size_t elements = part_length(call.elements, begin, at_once);
    const std::byte* const own = bytes_at(call.in, begin * size);
    for (uint32_t rank = self + 1; rank < group.ranks(); ++rank) {
      MessageChannel& channel = group.channel(rank);
      if (const int error = co_await channel.can_send(); error != 0) co_return error;
      send_fragment(channel, own, elements * size);
    }
    if (const int error = co_await fragments_of(group, 0, self, elements * size); error != 0) co_return error;
    std::byte* const to = bytes_at(call.out, begin * size);
    if (!call.is_exclusive())
      combine_fragments(group, call.reducer, factors, to, own, self + 1, elements);
    else if (self > 0)
      combine_fragments(group, call.reducer, factors, to, own, self, elements);
  }
  co_return 0;
}

}  // namespace nupa::ccl::messages
