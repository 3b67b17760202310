// SPDX-License-Identifier: Apache-2.0
/// barrier by dissemination. Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization" (1988).
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::messages {

/// Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization": in round k each rank notifies the rank 2^k
/// after it and waits for the rank 2^k before it.
CollectiveTask barrier(ChannelGroup& group) {
  for (uint32_t distance = 1; distance < group.ranks(); distance *= 2) {
    const uint32_t to = (group.rank() + distance) % group.ranks();
    const uint32_t from = (group.rank() + group.ranks() - distance) % group.ranks();
    if (const int error = co_await send_array(group, to, nullptr, 0); error != 0) co_return error;
    if (const int error = co_await receive_array(group, from, nullptr, 0); error != 0) co_return error;
  }
  co_return 0;
}

}  // namespace nupa::ccl::messages
