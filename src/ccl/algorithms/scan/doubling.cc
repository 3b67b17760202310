// SPDX-License-Identifier: Apache-2.0
/// scan and exscan in log2(N) rounds. Hillis and Steele, "Data parallel algorithms" (1986).
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::messages {

/// Hillis and Steele, "Data parallel algorithms": after round k a rank has the sum of itself and of the 2^k - 1 ranks
/// before it.
CollectiveTask scan_doubling(ChannelGroup& group, const Call& call) {
  const Reducer reducer = partial(call.reducer);
  const uint32_t rank = group.rank();
  const size_t bytes = call.bytes();
  std::vector<std::byte> sum(bytes);     // of this rank and those before it
  std::vector<std::byte> before(bytes);  // exscan: of the ranks before it only
  bool has_before = false;
  begin_with(call.reducer, sum.data(), call.in, call.elements);
  for (uint32_t distance = 1; distance < group.ranks() && bytes > 0; distance *= 2) {
    std::vector<std::byte> got(rank >= distance ? bytes : 0);
    const uint32_t to = rank + distance < group.ranks() ? rank + distance : kNoRank;
    const uint32_t from = rank >= distance ? rank - distance : kNoRank;
    if (to == kNoRank && from == kNoRank) continue;
    const Flow along{to == kNoRank ? from : to,   sum.data(), to == kNoRank ? 0 : bytes,
                     from == kNoRank ? to : from, got.data(), got.size()};
    if (const int error = co_await flow(group, along); error != 0) co_return error;
    if (from == kNoRank) continue;
    const Source sources[] = {{got.data(), nullptr}, {sum.data(), nullptr}};
    combine(reducer, sum.data(), sources, 2, call.elements);
    if (!call.is_exclusive()) continue;
    const Source both[] = {{got.data(), nullptr}, {before.data(), nullptr}};
    combine(reducer, before.data(), both, has_before ? 2 : 1, call.elements);
    has_before = true;
  }
  if (!call.is_exclusive())
    copy_array(call.out, sum.data(), bytes);
  else if (has_before)
    copy_array(call.out, before.data(), bytes);
  co_return 0;
}

}  // namespace nupa::ccl::messages
