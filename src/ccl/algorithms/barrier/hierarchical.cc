// SPDX-License-Identifier: Apache-2.0
/// Hierarchical barrier: within each node, between the first ranks of the nodes, and within each node again. Karonis et
/// al., "Exploiting hierarchy in parallel computer networks to optimize collective operation performance" (2000).
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/hierarchical.h"

namespace nupa::ccl::hierarchical {

CollectiveTask barrier(HierarchicalGroup& group) {
  if (const int error = co_await shm::barrier(group.local()); error != 0) co_return error;
  if (group.local().rank() == 0)
    if (const int error = co_await messages::barrier(*group.cross_node_group()); error != 0) co_return error;
  co_return co_await shm::barrier(group.local());
}

}  // namespace nupa::ccl::hierarchical
