// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/flow_windows.h"

#include <algorithm>
#include <iterator>

namespace nupa::roce {
namespace {

/// Bytes that may be in flight to a process before its acknowledgements state a window.
constexpr uint64_t kFirstWindow = 256 << 10;

}  // namespace

FlowWindows::FlowWindows(uint32_t socket_bytes)
    : room_(socket_bytes), for_responses_(std::make_shared<FlowWindow>(room_.for_responses())) {}

std::shared_ptr<Peer> FlowWindows::peer_at(const Gid& address, uint16_t port) {
  std::lock_guard lock(peers_mutex_);
  for (auto it = peers_.begin(); it != peers_.end();) it = it->second.expired() ? peers_.erase(it) : std::next(it);
  std::weak_ptr<Peer>& known = peers_[{address.raw, port}];
  std::shared_ptr<Peer> peer = known.lock();
  if (peer == nullptr) known = peer = std::make_shared<Peer>(kFirstWindow);
  return peer;
}

int64_t FlowWindows::serve_queue(FlowWindow& window, Hold& hold, TransmitBatch& batch, int64_t now) {
  // A queue pair that is blocked for another reason may use its turn without sending: the number of such turns is
  // limited.
  for (uint32_t tries = window.waiters(); tries > 0 && window.has_room();) {
    QpReceiver* queue_pair = window.first();
    if (queue_pair == nullptr) break;
    const uint64_t before = window.used();
    if (!hold.take(*queue_pair)) {
      window.pass_over(*queue_pair);
      return hold.next_try(now);
    }
    // The thread that held it may have taken it out of the queue meanwhile.
    if (window.leave_head(*queue_pair)) {
      queue_pair->take_turn(window, now, batch);
      batch.flush();
    }
    hold.release();
    if (window.used() <= before) --tries;
  }
  return INT64_MAX;
}

int64_t FlowWindows::serve_all(Hold& hold, TransmitBatch& batch, int64_t now) {
  // An exchange, so that the waiters noted before it are seen below.
  anyone_waits_.exchange(false);
  served_.clear();
  {
    std::lock_guard lock(peers_mutex_);
    for (const auto& [where, known] : peers_)
      if (std::shared_ptr<Peer> peer = known.lock(); peer != nullptr && peer->window.has_waiters())
        served_.push_back(std::move(peer));
  }
  bool waits = for_responses_->has_waiters();
  int64_t again = serve_queue(*for_responses_, hold, batch, now);
  for (const std::shared_ptr<Peer>& peer : served_) {
    waits = true;
    again = std::min(again, serve_queue(peer->window, hold, batch, now));
  }
  served_.clear();
  if (waits) anyone_waits_.exchange(true);
  return again;
}

}  // namespace nupa::roce
