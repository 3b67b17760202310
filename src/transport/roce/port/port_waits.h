// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

#include "progress/poll_policy.h"
#include "progress/receive_right.h"
#include "progress/timer_descriptor.h"
#include "transport/roce/port/port.h"

namespace nupa::roce {

/// What the threads of a port sleep on.
struct Port::Waits {
  /// While threads of the program poll, the port's thread looks at least this often whether they still do.
  static constexpr int64_t kLongestWatchNs = 1'000'000;

  /// The port's thread is about to sleep until then, unless pollers put it off.
  void watch(int64_t until_ns, const progress::PollsSeen& seen) {
    before_ns.store(seen.at_ns, std::memory_order_relaxed);
    polls_before.store(seen.polls, std::memory_order_relaxed);
    packets_before.store(seen.packets, std::memory_order_relaxed);
    watchdog.set(until_ns);
    // Late, since to set a timer may cost as much as a message (an exit from a virtual machine).
    put_off_ns.store(until_ns - (until_ns - seen.at_ns) / 8, std::memory_order_relaxed);
  }
  void watch_ends() { put_off_ns.store(INT64_MAX, std::memory_order_relaxed); }
  /// A poller found `put_off_ns` come. Under the receive mutex.
  [[gnu::noinline]] void put_off(const progress::PollsSeen& seen) {
    const progress::PollsSeen before{before_ns.load(std::memory_order_relaxed),
                                     polls_before.load(std::memory_order_relaxed),
                                     packets_before.load(std::memory_order_relaxed)};
    if (progress::needs_no_look(before, seen))
      watch(seen.at_ns + kLongestWatchNs, seen);
    else
      watch_ends();
  }

  /// A packet came for this channel. Under the receive mutex.
  void came_for(const Channel& channel, int64_t now) {
    if (latest == &channel) return;
    latest = &channel;
    latest_since_ns = now;
  }
  /// For a while all packets have been this channel's: none of others stands behind them.
  bool is_alone(const Channel& channel, int64_t now) const {
    constexpr int64_t kWhileNs = 1'000'000;
    return latest == &channel && now - latest_since_ns >= kWhileNs;
  }

  const Channel* latest = nullptr;  ///< that a packet came for; these two under the receive mutex
  int64_t latest_since_ns = 0;
  progress::ReceiveRight right;
  progress::TimerDescriptor watchdog;          ///< wakes the port's thread
  std::atomic<int64_t> put_off_ns{INT64_MAX};  ///< from then on pollers put the look off; INT64_MAX: there is none
  // As the look was put off last. The port's thread and a poller may write them at once: then a look comes that need
  // not.
  std::atomic<int64_t> before_ns{0};
  std::atomic<uint64_t> polls_before{0};
  std::atomic<uint64_t> packets_before{0};
};

}  // namespace nupa::roce
