// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Collectives by messages. `in` and `out` are as in shm.h. Each returns 0, the errno value that has ended the
/// communicator, or EPROTO if a rank has sent a message of another length than this one expects.
#include "ccl/channel/lane_group.h"
#include "ccl/call/call.h"

namespace nupa::ccl::lanes {

/// Dissemination: each rank notifies log2(N) others.
Steps barrier(LaneGroup& group);

/// The last operation, after a barrier. After it all that was sent has arrived, and no rank sends anything to this one.
Steps depart(LaneGroup& group);

// Direct algorithms: each rank exchanges messages with all others. Elements are reduced in the order of the ranks with
// one rounding, so all of these and those of shm.h give the same bits. At most kMaxSources ranks.
Steps broadcast_direct(LaneGroup& group, const Call& call);
Steps gather_direct(LaneGroup& group, const Call& call);
Steps all_gather_direct(LaneGroup& group, const Call& call);
Steps scatter_direct(LaneGroup& group, const Call& call);
Steps all_to_all_direct(LaneGroup& group, const Call& call);
Steps reduce_direct(LaneGroup& group, const Call& call);
/// Each rank sends all of its data to all others, and reduces everything.
Steps all_reduce_one_shot(LaneGroup& group, const Call& call);
/// Each rank reduces a chunk and sends it to all others.
Steps all_reduce_slices(LaneGroup& group, const Call& call);
Steps reduce_scatter_direct(LaneGroup& group, const Call& call);
Steps scan_direct(LaneGroup& group, const Call& call);

// Algorithms with few messages for each rank, even with many ranks. Elements are reduced in the order of the ranks, but
// in groups, so that short types are rounded more than once.

/// Each rank of a tree has a range of ranks that begins with itself, and each of its children has a part of that range.
enum class Tree : uint8_t { kBinomial, kFourAry };
Steps broadcast_tree(LaneGroup& group, const Call& call, Tree tree);
Steps reduce_tree(LaneGroup& group, const Call& call, Tree tree);
/// Requires equal blocks.
Steps gather_tree(LaneGroup& group, const Call& call);
Steps scatter_tree(LaneGroup& group, const Call& call);
/// log2(N) exchanges of the whole array.
Steps all_reduce_doubling(LaneGroup& group, const Call& call);
Steps scan_doubling(LaneGroup& group, const Call& call);
/// Rabenseifner's algorithm: halves are exchanged and reduced, then the results are gathered by doubling.
Steps all_reduce_halving(LaneGroup& group, const Call& call);
/// Bruck's algorithm: log2(N) messages of equal blocks.
Steps all_gather_bruck(LaneGroup& group, const Call& call);
Steps all_to_all_bruck(LaneGroup& group, const Call& call);

// Ring algorithms: each rank sends to the next one only. Elements are reduced in the order of the ring, which begins
// with another rank in each chunk, so operators must commute.
Steps all_gather_ring(LaneGroup& group, const Call& call);
Steps reduce_scatter_ring(LaneGroup& group, const Call& call);
Steps all_reduce_ring(LaneGroup& group, const Call& call);
/// One partner after the other.
Steps all_to_all_pairwise(LaneGroup& group, const Call& call);

}  // namespace nupa::ccl::lanes
