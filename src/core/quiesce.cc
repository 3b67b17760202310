// SPDX-License-Identifier: Apache-2.0
#include "core/quiesce.h"

#include <algorithm>

#include "base/clock.h"
#include "segment/send_lock.h"

namespace nupa::core {

namespace {

constexpr int64_t kLimitNs = 2'000'000'000;

/// `peer` null: the tables are this process's own.
bool await_holders(const segment::Tables& tables, const cm::Peer* peer) {
  const uint32_t count = std::min(tables.header->qp_high_water.load(), segment::kMaxQp);
  const int64_t deadline = base::now_ns() + kLimitNs;
  for (uint32_t i = 0; i < count; ++i) {
    bool is_late = false;
    segment::SendLock::await_holder(tables.qp[i].send_lock, [&] {
      if (peer != nullptr && !peer->alive()) return false;
      is_late = base::now_ns() > deadline;
      return !is_late;
    });
    if (is_late) return false;
  }
  return true;
}

}  // namespace

bool quiesce(cm::Node& node) {
  segment::SendLock::fence_after_revoking();
  bool all = await_holders(node.segment().tables(), nullptr);
  for (const cm::PeerRef& peer : node.peers()) all = await_holders(peer->tables(), peer.get()) && all;
  return all;
}

}  // namespace nupa::core
