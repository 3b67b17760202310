// SPDX-License-Identifier: Apache-2.0
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/ring.h"

namespace nupa::ccl::messages {

CollectiveTask pass_around(ChannelGroup& group, ZeroCopySends& zero_copy_sends, const Ring& ring, void* out,
                           const Blocks& blocks, uint32_t first) {
  for (uint32_t i = 0; i + 1 < ring.ranks; ++i) {
    const uint32_t sent = (first + 2 * ring.ranks - i) % ring.ranks;
    const uint32_t got = (first + 2 * ring.ranks - i - 1) % ring.ranks;
    const Flow step{ring.next(),
                    bytes_at(out, blocks.offset(sent)),
                    blocks.length(sent),
                    ring.previous(),
                    bytes_at(out, blocks.offset(got)),
                    blocks.length(got),
                    nullptr,
                    false,
                    &zero_copy_sends};
    if (const int error = co_await flow(group, step); error != 0) co_return error;
  }
  co_return co_await zero_copy_sends.settle();
}

CollectiveTask combine_around(ChannelGroup& group, ZeroCopySends& zero_copy_sends, const Ring& ring, void* sums,
                              const Blocks& blocks, const Reducer& reducer) {
  for (uint32_t i = 1; i < ring.ranks; ++i) {
    const uint32_t sent = ring.before(i);
    const uint32_t got = ring.before(i + 1);
    const Flow step{ring.next(),
                    bytes_at(sums, blocks.offset(sent)),
                    blocks.length(sent),
                    ring.previous(),
                    bytes_at(sums, blocks.offset(got)),
                    blocks.length(got),
                    &reducer,
                    true,
                    &zero_copy_sends};
    if (const int error = co_await flow(group, step); error != 0) co_return error;
  }
  co_return 0;
}

}  // namespace nupa::ccl::messages
