// SPDX-License-Identifier: Apache-2.0
/// reduce_scatter around a ring. Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
/// workstations" (2009).
#include <algorithm>
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/ring.h"

namespace nupa::ccl::messages {

CollectiveTask reduce_scatter_ring(ChannelGroup& group, const Call& call) {
  const Ring ring(group);
  const Reducer reducer = partial(call.reducer);
  const size_t size = call.reducer.element_bytes();
  size_t bytes = 0;
  for (uint32_t rank = 0; rank < ring.ranks; ++rank)
    bytes = std::max(bytes, call.in_blocks().offset(rank) + call.in_blocks().length(rank));
  std::vector<std::byte> sums(bytes);
  begin_with(call.reducer, sums.data(), call.in, bytes / size);
  ZeroCopySends zero_copy_sends(group, false, 0);  // the sums are freed when an error ends the call
  if (const int error = co_await combine_around(group, zero_copy_sends, ring, sums.data(), call.in_blocks(), reducer);
      error != 0)
    co_return error;
  const size_t own = call.in_blocks().length(ring.rank);
  copy_array(call.out, sums.data() + call.in_blocks().offset(ring.rank), own);
  end_with(call.reducer, call.out, own / size);
  co_return 0;
}

}  // namespace nupa::ccl::messages
