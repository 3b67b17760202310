// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Common parts of the ring algorithms: each rank sends to the next one only.
#include "ccl/algorithms/messages/transfer.h"
#include "ccl/call/call.h"

namespace nupa::ccl::messages {

struct Ring {
  uint32_t rank;
  uint32_t ranks;
  explicit Ring(const ChannelGroup& group) : rank(group.rank()), ranks(group.ranks()) {}
  uint32_t next() const { return (rank + 1) % ranks; }
  uint32_t previous() const { return (rank + ranks - 1) % ranks; }
  /// Returns the rank that is `distance` before this one.
  uint32_t before(uint32_t distance) const { return (rank + 2 * ranks - distance) % ranks; }
};

/// Each block goes around once. Each rank receives the blocks of all others, beginning with the previous rank's.
CollectiveTask pass_around(ChannelGroup& group, ZeroCopySends& zero_copy_sends, const Ring& ring, void* out,
                           const Blocks& blocks, uint32_t first);
/// Each block goes around and is combined with the block of each rank, until it reaches its owner.
CollectiveTask combine_around(ChannelGroup& group, ZeroCopySends& zero_copy_sends, const Ring& ring, void* sums,
                              const Blocks& blocks, const Reducer& reducer);

}  // namespace nupa::ccl::messages
