// SPDX-License-Identifier: Apache-2.0
/// all_gather around a ring. Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
/// MPICH" (2005), 4.1.
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/ring.h"

namespace nupa::ccl::messages {

CollectiveTask all_gather_ring(ChannelGroup& group, const Call& call) {
  const Ring ring(group);
  copy_unless_same(bytes_at(call.out, call.out_blocks().offset(ring.rank)), call.in, call.bytes());
  ZeroCopySends zero_copy_sends(group, true, call.out_blocks().longest(ring.ranks));
  co_return co_await pass_around(group, zero_copy_sends, ring, call.out, call.out_blocks(), ring.rank);
}

}  // namespace nupa::ccl::messages
