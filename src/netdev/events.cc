// SPDX-License-Identifier: Apache-2.0
#include "netdev/events.h"

namespace nupa::netdev {
namespace {

/// Requests beyond this limit are not answered, and the node that sent one retries.
constexpr size_t kMaxEvents = 256;

/// Returns the reason for a rejection as text for users.
std::string words_of(uint16_t reason) {
  switch (static_cast<RejectReason>(reason)) {
    case RejectReason::kInvalidServiceId:
      return "no node of this network listens there, or its key differs";
    case RejectReason::kConsumer:
      return "rejected: the peer has another key or another version of nupa net";
    case RejectReason::kNoQueuePair:
    case RejectReason::kNoResources:
      return "rejected: the peer has no memory or no queue pairs left";
    case RejectReason::kTimeout:
      return "rejected: this node answered too late";
    case RejectReason::kStaleConnection:
      return "rejected: the peer still holds a connection of an earlier run";
    default:
      return "rejected, reason " + std::to_string(reason) + " (IBTA 12.6.7.2)";
  }
}

}  // namespace

uint64_t Events::new_owner() {
  std::lock_guard lock(mutex_);
  return next_owner_++;
}

void Events::push(uint64_t owner, What what) {
  {
    std::lock_guard lock(mutex_);
    events_.push_back({owner, std::move(what)});
  }
  wake_();
}

std::deque<Events::Event> Events::take() {
  std::deque<Event> events;
  std::lock_guard lock(mutex_);
  events.swap(events_);
  return events;
}

uint64_t Events::on_request(uint64_t, ConnectionId id, const ConnectionRequest& request) {
  uint64_t owner;
  {
    std::lock_guard lock(mutex_);
    if (events_.size() >= kMaxEvents) return 0;
    owner = next_owner_++;
  }
  push(owner, Asked{owner, id, request});
  return owner;
}

void Events::on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>&) {
  push(owner, Ended{words_of(reason)});
}

}  // namespace nupa::netdev
