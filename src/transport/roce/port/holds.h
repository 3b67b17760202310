// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "progress/alarm.h"
#include "progress/late_events.h"
#include "transport/roce/port/qp_receiver.h"
#include "transport/roce/port/inbox.h"

namespace nupa::roce {

class Hold;

/// Queue pairs that other threads hold when packets arrive for them. The port waits a little for such a queue pair,
/// once. Then its packets wait in an inbox, and the port tries again in its next turn and by a timer. All calls are
/// made under the poller's lock.
class Holds {
 public:
  /// Called for a queue pair that could be entered again and got the packets of its inbox.
  using CaughtUp = std::function<void(QpReceiver&)>;
  /// `pool`: for packets that wait. `alarm`: wakes the serving thread for the next try.
  Holds(PacketPool& pool, progress::Alarm& alarm, CaughtUp caught_up);

  /// Makes room for `queue_pairs` queue pairs, so that arriving packets allocate nothing.
  void reserve(size_t queue_pairs) { held_up_.reserve(queue_pairs); }
  /// A packet arrived for this queue pair.
  void came_for(const QpReceiver& queue_pair, int64_t now) {
    if (latest_ == &queue_pair) return;
    latest_ = &queue_pair;
    latest_since_ns_ = now;
  }
  /// Leaves a packet and the acknowledgement that it carries in the inbox. Returns false if the inbox is full and the
  /// packet is dropped.
  [[gnu::cold]] bool keep(QpReceiver& queue_pair, const Packet& packet, const net::UdpSocket::Received& received,
                          int64_t now);
  /// True if queue pairs wait to be tried again.
  bool any() const { return !held_up_.empty(); }
  /// Tries all of them again. Returns how many packets were delivered.
  [[gnu::cold]] uint32_t try_again();
  /// When the timer tries next.
  int64_t next_try(int64_t now) const { return now + next_try_ns_; }
  /// The timer has expired: the next interval is longer. Returns the time of the next try; INT64_MAX: none is needed.
  int64_t put_off_try(int64_t now);
  /// The queue pair is removed.
  void remove(QpReceiver& queue_pair);

 private:
  friend class Hold;
  /// Another thread holds the queue pair: enters it if that thread leaves it soon.
  [[gnu::cold]] bool enter_soon(QpReceiver& queue_pair);
  bool comes_free(QpReceiver& queue_pair) const;
  void note_held_up(QpReceiver& queue_pair);
  /// The queue pair could be entered again: delivers the packets of its inbox.
  [[gnu::cold]] void catch_up(QpReceiver& queue_pair);
  /// True if all packets of the last time were for this queue pair, so that no packets of others wait behind them.
  bool is_alone(const QpReceiver& queue_pair, int64_t now) const;

  progress::Alarm& alarm_;
  const CaughtUp caught_up_;
  HeldPackets packets_;
  std::vector<QpReceiver*> held_up_;
  int64_t next_try_ns_;
  uint32_t brought_ = 0;                ///< packets delivered from inboxes since try_again() began
  const QpReceiver* latest_ = nullptr;  ///< the queue pair that the last packet was for
  int64_t latest_since_ns_ = 0;
};

/// The one queue pair that a thread of the port holds, until it takes another one, releases it, or the object is
/// destroyed. Then the queue pair is left, and the events that it raised meanwhile are sent. Under the poller's lock.
class Hold {
 public:
  explicit Hold(Holds& holds) : holds_(holds) {}
  ~Hold() { release(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  /// Enters the queue pair, and delivers the packets of its inbox. Returns false if another thread holds it. It waits
  /// for microseconds only, and only the first time: later that thread is not about to leave, and packets of other
  /// queue pairs wait.
  bool take(QpReceiver& queue_pair) {
    if (held_ == &queue_pair) return true;
    release();
    if (!queue_pair.enter() && !holds_.enter_soon(queue_pair)) return false;
    entered(queue_pair);
    return true;
  }
  void release() {
    if (held_ == nullptr) return;
    held_->leave();
    held_ = nullptr;
    progress::LateEvents::end();
  }
  /// When a queue pair that could not be entered is tried again.
  int64_t next_try(int64_t now) const { return holds_.next_try(now); }

 private:
  friend class Holds;
  void entered(QpReceiver& queue_pair) {
    held_ = &queue_pair;
    progress::LateEvents::begin();
    if (queue_pair.held_up_) [[unlikely]]
      holds_.catch_up(queue_pair);
  }

  Holds& holds_;
  QpReceiver* held_ = nullptr;
};

}  // namespace nupa::roce
