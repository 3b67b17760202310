#pragma once
/// Collectives by messages. `in` and `out` as in mapped/algorithms.h. Each returns 0, why all has ended, or EPROTO: a
/// rank has sent a message of another length than this one has a use for.
#include "ccl/lane/lane_group.h"
#include "ccl/task.h"

namespace nupa::ccl::lanes {

/// Each rank tells log2(N) others: dissemination.
Steps barrier(LaneGroup& group);

/// The last one: after it all that was sent has arrived, and nobody sends this rank anything more.
Steps depart(LaneGroup& group);

// Direct: each rank exchanges messages with all others. Whatever is reduced is reduced in the order of the ranks, once:
// the same bits by all of these, and by those of mapped/algorithms.h. kMaxSources ranks at most.
Steps broadcast_direct(LaneGroup& group, BroadcastTask task);
Steps gather_direct(LaneGroup& group, GatherTask task);
Steps all_gather_direct(LaneGroup& group, GatherTask task);
Steps scatter_direct(LaneGroup& group, ScatterTask task);
Steps all_to_all_direct(LaneGroup& group, ExchangeTask task);
Steps reduce_direct(LaneGroup& group, ReduceTask task);
/// Each rank sends all it has to all, and reduces everything.
Steps all_reduce_one_shot(LaneGroup& group, ReduceTask task);
/// Each rank reduces a slice and sends it to all.
Steps all_reduce_slices(LaneGroup& group, ReduceTask task);
Steps reduce_scatter_direct(LaneGroup& group, ReduceTask task);
Steps scan_direct(LaneGroup& group, ReduceTask task);

}  // namespace nupa::ccl::lanes
