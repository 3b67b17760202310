// SPDX-License-Identifier: Apache-2.0
/// reduce: each rank sends to the root, which reduces in the order of the ranks. No paper.
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/direct.h"

namespace nupa::ccl::messages {

CollectiveTask reduce_direct(ChannelGroup& group, const Call& call) {
  if (const int error = co_await reach_all(group); error != 0) co_return error;
  Factors factors;
  if (has_factors(call.reducer))
    if (const int error = co_await exchange_factors(group, call.reducer, &factors); error != 0) co_return error;
  if (group.rank() != call.root) {
    if (call.elements == 0) co_return 0;
    ZeroCopySends zero_copy_sends(group, true, call.bytes());
    if (const int error = co_await send_array(group, call.root, call.in, call.bytes(), &zero_copy_sends); error != 0)
      co_return error;
    co_return co_await zero_copy_sends.settle();
  }
  const size_t size = call.reducer.element_bytes();
  const size_t at_once = elements_at_once(group, call.reducer, call.elements);
  for (size_t begin = 0; begin < call.elements; begin += at_once) {
    const size_t elements = part_length(call.elements, begin, at_once);
    if (const int error = co_await fragments_of(group, 0, group.ranks(), elements * size); error != 0) co_return error;
    combine_fragments(group, call.reducer, factors, bytes_at(call.out, begin * size), bytes_at(call.in, begin * size),
                      group.ranks(), elements);
  }
  co_return 0;
}

}  // namespace nupa::ccl::messages
