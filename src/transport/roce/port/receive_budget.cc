// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/receive_budget.h"

#include <algorithm>
#include <utility>

#include "transport/roce/wire/wire.h"

namespace nupa::roce {
namespace {

/// How long a sender counts as active, the interval of the adjustments, and the budget: its first and least value, and
/// each sender's least share.
constexpr int64_t kCountNs = 20'000'000;
constexpr int64_t kTurnNs = 500'000;
constexpr uint32_t kFirstRoom = 512 << 10;
constexpr uint32_t kLeastRoom = 128 << 10;
constexpr uint32_t kLeastShare = 2 * kMaxPacketBytes;

/// The kernel also counts its overhead: about as much again for packets that arrive singly.
uint32_t whole_room(uint32_t socket_bytes) { return socket_bytes / 3; }

}  // namespace

ReceiveBudget::ReceiveBudget(uint32_t socket_bytes)
    : whole_(whole_room(socket_bytes)), room_(std::min(kFirstRoom, whole_)), share_(room_) {}

uint32_t ReceiveBudget::for_responses() const {
  const bool alone = std::max(senders_, senders_before_) <= 1;
  return std::max(alone ? room_ : room_ / 2, kLeastShare);
}

bool ReceiveBudget::choose(int64_t now) {
  if (now < turn_ends_ns_) return false;
  if (full_looks_ <= 2 * empty_looks_)
    room_ = std::min(room_ + room_ / 4, whole_);
  else
    room_ = std::max(room_ - room_ / 4, std::min(kLeastRoom, whole_));
  const uint32_t senders = std::max({senders_, senders_before_, 1u});
  share_.store(std::max(room_ / senders, kLeastShare), std::memory_order_relaxed);
  full_looks_ = empty_looks_ = 0;
  turn_ends_ns_ = now + kTurnNs;
  if (now < count_ends_ns_) return true;
  count_ends_ns_ = now + kCountNs;
  ++turn_;
  senders_before_ = std::exchange(senders_, 0);
  return true;
}

}  // namespace nupa::roce
