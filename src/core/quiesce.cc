// SPDX-License-Identifier: Apache-2.0
#include "core/quiesce.h"

#include "base/clock.h"
#include "shm/send_lock.h"

namespace nupa::core {

namespace {

constexpr int64_t kLimitNs = 2'000'000'000;

/// Waits while `lock`, a number of a queue pair of `peer`, has its present odd value. Returns false if it still has it
/// at the deadline.
bool await_holder(const std::atomic<uint32_t>& lock, const host::Peer& peer, int64_t deadline) {
  bool is_late = false;
  shm::SendLock::await_holder(lock, [&] {
    if (!peer.is_self() && !peer.alive()) return false;
    is_late = base::now_ns() > deadline;
    return !is_late;
  });
  return !is_late;
}

/// Waits for the holder of the queue pair's send lock, and then for the copy that a copy engine does for it. A holder
/// may begin such a copy before it releases the lock.
bool await_uses(const shm::QpShared& queue_pair, const host::Peer& peer, int64_t deadline) {
  return await_holder(queue_pair.send_lock, peer, deadline) && await_holder(queue_pair.copying, peer, deadline);
}

bool await_holders(host::Peer& peer, int64_t deadline) {
  bool is_late = false;
  const bool all = peer.queue_pairs().each([&](const shm::QpBank& bank, uint32_t) {
    const uint32_t count = bank.count();
    for (uint32_t i = 0; i < count && !is_late; ++i) is_late = !await_uses(bank.qp[i], peer, deadline);
  });
  // A bank that cannot be mapped may be in use, unless its process died.
  return !is_late && (all || !peer.alive());
}

}  // namespace

bool quiesce(host::Node& node) {
  shm::SendLock::fence_after_revoking();
  // All peers share one deadline: after a stopped process has used it up, each other process is only checked once.
  const int64_t deadline = base::now_ns() + kLimitNs;
  bool all = await_holders(node.self(), deadline);
  for (const host::PeerRef& peer : node.peers()) all = await_holders(*peer, deadline) && all;
  node.refuse_earlier_requests();
  return all;
}

bool quiesce_peer(host::Node& node, uint32_t slot, uint32_t qp_num) {
  shm::SendLock::fence_after_revoking();
  // A process that this one has not connected to has not mapped its receives.
  const host::PeerRef peer = slot == 0 ? nullptr : node.find(slot);
  if (peer == nullptr) return true;
  const auto index = peer->queue_pairs().index_of(qp_num);
  if (!index) return quiesce(node);
  const bool is_over = await_uses(*peer->queue_pairs().qp(*index), *peer, base::now_ns() + kLimitNs);
  node.refuse_earlier_requests();
  return is_over;
}

}  // namespace nupa::core
