// SPDX-License-Identifier: Apache-2.0
/// all_reduce: each rank sends all of its data to all others, and reduces everything in the order of the ranks. No
/// paper.
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/direct.h"

namespace nupa::ccl::messages {

CollectiveTask all_reduce_one_shot(ChannelGroup& group, const Call& call) {
  if (const int error = co_await reach_all(group); error != 0) co_return error;
  Factors factors;
  if (has_factors(call.reducer))
    if (const int error = co_await exchange_factors(group, call.reducer, &factors); error != 0) co_return error;
  const size_t size = call.reducer.element_bytes();
  const size_t at_once = elements_at_once(group, call.reducer, call.elements);
  ZeroCopySends zero_copy_sends(group, call.in != call.out, call.bytes());
  size_t sent = 0;
  for (size_t begin = 0; begin < call.elements; begin += at_once) {
    for (; sent < call.elements && sent < begin + group.ahead() * at_once; sent += at_once) {
      const size_t bytes = part_length(call.elements, sent, at_once) * size;
      if (const int error = co_await send_to_all(group, zero_copy_sends, bytes_at(call.in, sent * size), bytes);
          error != 0)
        co_return error;
    }
    const size_t elements = part_length(call.elements, begin, at_once);
    if (const int error = co_await fragments_of(group, 0, group.ranks(), elements * size); error != 0) co_return error;
    combine_fragments(group, call.reducer, factors, bytes_at(call.out, begin * size), bytes_at(call.in, begin * size),
                      group.ranks(), elements);
  }
  co_return co_await zero_copy_sends.settle();
}

}  // namespace nupa::ccl::messages
