// SPDX-License-Identifier: Apache-2.0
/// barrier: each rank has a flag and reads all others' flags. Mellor-Crummey and Scott, "Algorithms for scalable
/// synchronization on shared-memory multiprocessors" (1991), discuss flags that one processor writes and others spin
/// on.
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"

namespace nupa::ccl::shm {

CollectiveTask barrier(ShmGroup& group) {
  const uint32_t step = group.begin(1) + 1;
  group.publish(step);
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
  group.all_have_begun();
  co_return 0;
}

}  // namespace nupa::ccl::shm
