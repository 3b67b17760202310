// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "progress/alarm.h"
#include "progress/late_events.h"
#include "transport/roce/port/channel.h"
#include "transport/roce/port/inbox.h"

namespace nupa::roce {

class Hold;

/// The channels that other threads hold when packets come for them. The port waits a little for such a channel, once;
/// then its packets wait in an inbox, and the port tries again at its next turn, and by the clock. All under the lock
/// of the port's turns.
class Holds {
 public:
  /// A channel that is held again got what was in its inbox.
  using CaughtUp = std::function<void(Channel&)>;
  /// `pool`: for packets that wait. `alarm`: wakes the port's thread for the next try.
  Holds(PacketPool& pool, progress::Alarm& alarm, CaughtUp caught_up);

  /// There may be so many channels: nothing is allocated where packets arrive.
  void reserve(size_t channels) { held_up_.reserve(channels); }
  /// A packet came for this channel.
  void came_for(const Channel& channel, int64_t now) {
    if (latest_ == &channel) return;
    latest_ = &channel;
    latest_since_ns_ = now;
  }
  /// Leaves a packet in the channel's inbox, and what it brought along. False: dropped, the inbox is full.
  [[gnu::cold]] bool keep(Channel& channel, const Packet& packet, const net::UdpSocket::Received& received,
                          int64_t now);
  /// Some channels wait to be tried again.
  bool any() const { return !held_up_.empty(); }
  /// Another try at all of them. Returns how many packets it brought.
  [[gnu::cold]] uint32_t try_again();
  /// When the next try is by the clock.
  int64_t next_try(int64_t now) const { return now + next_try_ns_; }
  /// The clock's try has come: after it the next one is later. Returns its time; INT64_MAX: none is needed.
  int64_t put_off_try(int64_t now);
  /// The channel is gone.
  void remove(Channel& channel);

 private:
  friend class Hold;
  /// Another thread holds the channel: enters it as soon as that leaves it, if that is soon.
  [[gnu::cold]] bool enter_soon(Channel& channel);
  bool comes_free(Channel& channel) const;
  void note_held_up(Channel& channel);
  /// The channel is held again.
  [[gnu::cold]] void catch_up(Channel& channel);
  /// For a while all packets have been this channel's: none of others stands behind them.
  bool is_alone(const Channel& channel, int64_t now) const;

  progress::Alarm& alarm_;
  const CaughtUp caught_up_;
  HeldPackets packets_;
  std::vector<Channel*> held_up_;
  int64_t next_try_ns_;
  uint32_t brought_ = 0;             ///< packets out of inboxes since try_again() began
  const Channel* latest_ = nullptr;  ///< that a packet came for
  int64_t latest_since_ns_ = 0;
};

/// The one channel that a thread of the port holds, until it takes another one, releases it, or the object ends: then
/// the channel is left and the events that it raised meanwhile go out. Under the lock of the port's turns.
class Hold {
 public:
  explicit Hold(Holds& holds) : holds_(holds) {}
  ~Hold() { release(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  /// Takes the channel, and brings what waits in its inbox. False: another thread holds it. Waits for microseconds
  /// only, and only the first time: that thread is not on its way out then, and packets of others stand behind.
  bool take(Channel& channel) {
    if (held_ == &channel) return true;
    release();
    if (!channel.enter() && !holds_.enter_soon(channel)) return false;
    entered(channel);
    return true;
  }
  void release() {
    if (held_ == nullptr) return;
    held_->leave();
    held_ = nullptr;
    progress::LateEvents::end();
  }
  /// When a channel that was not to be had is tried again.
  int64_t next_try(int64_t now) const { return holds_.next_try(now); }

 private:
  friend class Holds;
  void entered(Channel& channel) {
    held_ = &channel;
    progress::LateEvents::begin();
    if (channel.held_up_) [[unlikely]]
      holds_.catch_up(channel);
  }

  Holds& holds_;
  Channel* held_ = nullptr;
};

}  // namespace nupa::roce
