// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/holds.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "progress/pauses.h"
#include "progress/waiter.h"

namespace nupa::roce {
namespace {

/// A thread that holds a queue pair is mostly about to leave it. Otherwise it was preempted there, or sends much: the
/// port tries again in its next turn, and at the latest after a retry pause.
constexpr int64_t kHoldNs = 2'000;
/// In a stream of one queue pair no packets of others wait behind it, and waiting is cheaper than copying.
constexpr int64_t kHoldAloneNs = 2'000'000;
constexpr progress::WaitPolicy kHoldPolicy{UINT32_MAX, INT64_MAX, 0};  // pauses only

}  // namespace

Holds::Holds(PacketPool& pool, progress::Alarm& alarm, CaughtUp caught_up)
    : alarm_(alarm), caught_up_(std::move(caught_up)), packets_(pool), next_try_ns_(progress::kFirstRetryPauseNs) {}

bool Holds::is_alone(const QpReceiver& queue_pair, int64_t now) const {
  constexpr int64_t kWhileNs = 1'000'000;
  return latest_ == &queue_pair && now - latest_since_ns_ >= kWhileNs;
}

bool Holds::enter_soon(QpReceiver& queue_pair) {
  if (!queue_pair.held_up_ && comes_free(queue_pair)) return true;
  note_held_up(queue_pair);
  return false;
}

bool Holds::comes_free(QpReceiver& queue_pair) const {
  const int64_t now = base::now_ns();
  const bool alone = is_alone(queue_pair, now);
  return progress::wait_for([&] { return queue_pair.enter(); }, alone ? progress::kHolderPolicy : kHoldPolicy,
                            progress::Deadline::in_ns(alone ? kHoldAloneNs : kHoldNs, now));
}

void Holds::note_held_up(QpReceiver& queue_pair) {
  if (queue_pair.held_up_) return;
  queue_pair.held_up_ = true;
  held_up_.push_back(&queue_pair);
  alarm_.expect(next_try(base::now_ns()));
}

void Holds::catch_up(QpReceiver& queue_pair) {
  queue_pair.held_up_ = false;
  std::erase(held_up_, &queue_pair);
  next_try_ns_ = progress::kFirstRetryPauseNs;
  const uint32_t packets =
      packets_.take_all(queue_pair.inbox_, [&](Packet& packet, const net::UdpSocket::Received& from, int64_t came_ns) {
        queue_pair.deliver(packet, from, came_ns);
      });
  brought_ += packets;
  if (packets > 0) caught_up_(queue_pair);
}

bool Holds::keep(QpReceiver& queue_pair, const Packet& packet, const net::UdpSocket::Received& received, int64_t now) {
  note_held_up(queue_pair);
  bool kept = true;
  if (packet.carried != nullptr) kept = packets_.keep(queue_pair.inbox_, decode_carried(packet), received, now);
  return kept && packets_.keep(queue_pair.inbox_, packet, received, now);
}

uint32_t Holds::try_again() {
  brought_ = 0;
  Hold hold(*this);
  // Its packets stay in the socket meanwhile, which has room for all that may be in flight.
  if (held_up_.size() == 1 && is_alone(*held_up_[0], base::now_ns()) && comes_free(*held_up_[0]))
    hold.entered(*held_up_[0]);
  // From the last to the first: those that are entered leave the list.
  for (size_t i = held_up_.size(); i-- > 0;) hold.take(*held_up_[i]);
  return brought_;
}

int64_t Holds::put_off_try(int64_t now) {
  if (held_up_.empty()) return INT64_MAX;
  const int64_t at = next_try(now);
  next_try_ns_ = std::min(2 * next_try_ns_, progress::kLongestRetryPauseNs);
  return at;
}

void Holds::remove(QpReceiver& queue_pair) {
  std::erase(held_up_, &queue_pair);
  packets_.drop_all(queue_pair.inbox_);
  if (latest_ == &queue_pair) latest_ = nullptr;
  queue_pair.held_up_ = false;
}

}  // namespace nupa::roce
