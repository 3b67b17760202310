#pragma once
/// Collectives by messages. `in` and `out` as in mapped/algorithms.h. Each returns 0, why all has ended, or EPROTO: a
/// rank has sent a message of another length than this one has a use for.
#include "ccl/channel/lane_group.h"
#include "ccl/call/call.h"

namespace nupa::ccl::lanes {

/// Each rank tells log2(N) others: dissemination.
Steps barrier(LaneGroup& group);

/// The last one, after a barrier: after it all that was sent has arrived, and nobody sends this rank anything more.
Steps depart(LaneGroup& group);

// Direct: each rank exchanges messages with all others. Whatever is reduced is reduced in the order of the ranks, once:
// the same bits by all of these, and by those of mapped/algorithms.h. kMaxSources ranks at most.
Steps broadcast_direct(LaneGroup& group, const Call& call);
Steps gather_direct(LaneGroup& group, const Call& call);
Steps all_gather_direct(LaneGroup& group, const Call& call);
Steps scatter_direct(LaneGroup& group, const Call& call);
Steps all_to_all_direct(LaneGroup& group, const Call& call);
Steps reduce_direct(LaneGroup& group, const Call& call);
/// Each rank sends all it has to all, and reduces everything.
Steps all_reduce_one_shot(LaneGroup& group, const Call& call);
/// Each rank reduces a slice and sends it to all.
Steps all_reduce_slices(LaneGroup& group, const Call& call);
Steps reduce_scatter_direct(LaneGroup& group, const Call& call);
Steps scan_direct(LaneGroup& group, const Call& call);

// Few messages for each rank, however many ranks there are. Elements are reduced in the order of the ranks, but in
// groups, so that short types are rounded more than once.

/// Along a tree: each rank has its part of the ranks, itself the first of it, and each child has a part of those.
enum class Tree : uint8_t { kBinomial, kFourAry };
Steps broadcast_tree(LaneGroup& group, const Call& call, Tree tree);
Steps reduce_tree(LaneGroup& group, const Call& call, Tree tree);
/// Equal blocks.
Steps gather_tree(LaneGroup& group, const Call& call);
Steps scatter_tree(LaneGroup& group, const Call& call);
/// log2(N) exchanges of all there is.
Steps all_reduce_doubling(LaneGroup& group, const Call& call);
Steps scan_doubling(LaneGroup& group, const Call& call);
/// Rabenseifner's: halves are exchanged and reduced, then doubled.
Steps all_reduce_halving(LaneGroup& group, const Call& call);
/// Bruck's, log2(N) messages of equal blocks.
Steps all_gather_bruck(LaneGroup& group, const Call& call);
Steps all_to_all_bruck(LaneGroup& group, const Call& call);

// Around a ring: each rank sends to the next one only. Elements are reduced in the order of the ring, from another rank
// on in each slice: operators have to commute.
Steps all_gather_ring(LaneGroup& group, const Call& call);
Steps reduce_scatter_ring(LaneGroup& group, const Call& call);
Steps all_reduce_ring(LaneGroup& group, const Call& call);
/// One partner after the other.
Steps all_to_all_pairwise(LaneGroup& group, const Call& call);

}  // namespace nupa::ccl::lanes
