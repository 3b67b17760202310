// SPDX-License-Identifier: Apache-2.0
/// The last operation of a communicator whose ranks map each other's arenas.
#include "ccl/algorithms/shm.h"

namespace nupa::ccl::shm {

CollectiveTask depart(ShmGroup& group) {
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (rank != group.rank()) group.leave(rank);
  co_return co_await group.all_left();
}

}  // namespace nupa::ccl::shm
