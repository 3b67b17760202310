// SPDX-License-Identifier: Apache-2.0
/// all_reduce around a ring: a reduce_scatter and an all_gather. Patarasuk and Yuan, "Bandwidth optimal all-reduce
/// algorithms for clusters of workstations" (2009).
#include <vector>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/ring.h"

namespace nupa::ccl::messages {

CollectiveTask all_reduce_ring(ChannelGroup& group, const Call& call) {
  const Ring ring(group);
  const Reducer reducer = partial(call.reducer);
  const size_t size = call.reducer.element_bytes();
  std::vector<size_t> lengths;
  std::vector<size_t> offsets;
  for (uint32_t rank = 0; rank < ring.ranks; ++rank) {
    const Slice slice = slice_of(rank, ring.ranks, call.elements, size);
    lengths.push_back(slice.length() * size);
    offsets.push_back(slice.begin * size);
  }
  const Blocks blocks{0, lengths.data(), offsets.data()};
  begin_with(call.reducer, call.out, call.in, call.elements);
  // Zero-copy is safe: a block that was sent is overwritten only by its result, which all other ranks have contributed
  // to.
  ZeroCopySends zero_copy_sends(group, true, blocks.longest(ring.ranks));
  if (const int error = co_await combine_around(group, zero_copy_sends, ring, call.out, blocks, reducer); error != 0)
    co_return error;
  end_with(call.reducer, bytes_at(call.out, offsets[ring.rank]), lengths[ring.rank] / size);
  co_return co_await pass_around(group, zero_copy_sends, ring, call.out, blocks, ring.rank);
}

}  // namespace nupa::ccl::messages
