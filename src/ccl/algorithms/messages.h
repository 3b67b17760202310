// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Collectives by messages. `in` and `out` are as in shm.h. Each returns 0, the errno value that has ended the
/// communicator, or EPROTO if a rank has sent a message of another length than this one expects.
#include "ccl/channel/channel_group.h"
#include "ccl/call/call.h"

namespace nupa::ccl::messages {

/// Dissemination: each rank notifies log2(N) others.
CollectiveTask barrier(ChannelGroup& group);

/// The last operation, after a barrier. After it all that was sent has arrived, and no rank sends anything to this one.
CollectiveTask depart(ChannelGroup& group);

// Direct algorithms: each rank exchanges messages with all others. Elements are reduced in the order of the ranks with
// one rounding, so all of these and those of shm.h give the same bits. At most kMaxSources ranks.
CollectiveTask broadcast_direct(ChannelGroup& group, const Call& call);
CollectiveTask gather_direct(ChannelGroup& group, const Call& call);
CollectiveTask all_gather_direct(ChannelGroup& group, const Call& call);
CollectiveTask scatter_direct(ChannelGroup& group, const Call& call);
CollectiveTask all_to_all_direct(ChannelGroup& group, const Call& call);
CollectiveTask reduce_direct(ChannelGroup& group, const Call& call);
/// Each rank sends all of its data to all others, and reduces everything.
CollectiveTask all_reduce_one_shot(ChannelGroup& group, const Call& call);
/// Each rank reduces a chunk and sends it to all others.
CollectiveTask all_reduce_slices(ChannelGroup& group, const Call& call);
CollectiveTask reduce_scatter_direct(ChannelGroup& group, const Call& call);
CollectiveTask scan_direct(ChannelGroup& group, const Call& call);

// Algorithms with few messages for each rank, even with many ranks. Elements are reduced in the order of the ranks, but
// in groups, so that short types are rounded more than once.

/// Each rank of a tree has a range of ranks that begins with itself, and each of its children has a part of that range.
enum class Tree : uint8_t { kBinomial, kFourAry };
CollectiveTask broadcast_tree(ChannelGroup& group, const Call& call, Tree tree);
CollectiveTask reduce_tree(ChannelGroup& group, const Call& call, Tree tree);
/// Requires equal blocks.
CollectiveTask gather_tree(ChannelGroup& group, const Call& call);
CollectiveTask scatter_tree(ChannelGroup& group, const Call& call);
/// log2(N) exchanges of the whole array.
CollectiveTask all_reduce_doubling(ChannelGroup& group, const Call& call);
CollectiveTask scan_doubling(ChannelGroup& group, const Call& call);
/// Rabenseifner's algorithm: halves are exchanged and reduced, then the results are gathered by doubling.
CollectiveTask all_reduce_halving(ChannelGroup& group, const Call& call);
/// Bruck's algorithm: log2(N) messages of equal blocks.
CollectiveTask all_gather_bruck(ChannelGroup& group, const Call& call);
CollectiveTask all_to_all_bruck(ChannelGroup& group, const Call& call);

// Ring algorithms: each rank sends to the next one only. Elements are reduced in the order of the ring, which begins
// with another rank in each chunk, so operators must commute.
CollectiveTask all_gather_ring(ChannelGroup& group, const Call& call);
CollectiveTask reduce_scatter_ring(ChannelGroup& group, const Call& call);
CollectiveTask all_reduce_ring(ChannelGroup& group, const Call& call);
/// One partner after the other.
CollectiveTask all_to_all_pairwise(ChannelGroup& group, const Call& call);

}  // namespace nupa::ccl::messages
