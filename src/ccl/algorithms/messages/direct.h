// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Common parts of the algorithms in which each rank gets a fragment from every other one.
#include "ccl/algorithms/messages/transfer.h"
#include "ccl/call/call.h"

namespace nupa::ccl::messages {

/// Waits until each rank in [begin, end) except this one has sent a fragment, which must have this length.
CollectiveTask fragments_of(ChannelGroup& group, uint32_t begin, uint32_t end, size_t bytes);
/// Combines this rank's elements with the received fragments of ranks [0, count), and takes those fragments.
void combine_fragments(ChannelGroup& group, const Reducer& reducer, const Factors& factors, void* out, const void* own,
                       uint32_t count, size_t elements);
/// Returns the number of elements in one fragment.
size_t elements_at_once(ChannelGroup& group, const Reducer& reducer, size_t all);
CollectiveTask send_to_all(ChannelGroup& group, ZeroCopySends& zero_copy_sends, const void* data, size_t bytes);

/// Each rank sends a block, which may be empty, to every other one, and gets one. Each begins with another rank, so
/// that not all send to the same one. `stays`: received blocks do not overwrite blocks that are sent.
CollectiveTask exchange_blocks(ChannelGroup& group, const void* in, const Blocks& in_blocks, void* out,
                               const Blocks& out_blocks, bool stays);

}  // namespace nupa::ccl::messages
