// SPDX-License-Identifier: Apache-2.0
/// all_gather: all ranks read each rank's slot, or its array in place, as in broadcast/shm_slots.cc.
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"

namespace nupa::ccl::shm {

CollectiveTask all_gather(ShmGroup& group, const Call& call) {
  co_return co_await gather_blocks(group, call, call.out_blocks().longest(group.ranks()), true, true);
}

}  // namespace nupa::ccl::shm
