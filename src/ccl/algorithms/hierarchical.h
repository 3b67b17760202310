#pragma once
/// Collectives in three parts: within each memory, between memories, within each memory. Elements are reduced in the
/// order of the memories, and of the ranks in each, in groups, so that short types are rounded more than once. `in` and
/// `out` as in mapped/algorithms.h. Each part is done by whichever algorithm is best for it.
#include "ccl/call/call.h"
#include "ccl/channel/hierarchical_group.h"

namespace nupa::ccl::two_level {

Steps barrier(TwoLevelGroup& group);
Steps broadcast(TwoLevelGroup& group, const Call& call);
Steps reduce(TwoLevelGroup& group, const Call& call);
/// By the first rank of each memory.
Steps all_reduce_by_first(TwoLevelGroup& group, const Call& call);
/// Each column has a slice.
Steps all_reduce_by_columns(TwoLevelGroup& group, const Call& call);
/// Equal blocks, memories in order.
Steps all_gather(TwoLevelGroup& group, const Call& call);
/// Equal blocks, memories in order and even: each column has the blocks of its ranks.
Steps reduce_scatter(TwoLevelGroup& group, const Call& call);

}  // namespace nupa::ccl::two_level
