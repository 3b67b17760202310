// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

#include "progress/poll_policy.h"
#include "progress/schedule.h"
#include "progress/timer_descriptor.h"
#include "progress/wake_up.h"

namespace nupa::progress {

/// Wakes the serving thread for other reasons than packets: a thread expects something before the serving thread wakes
/// by itself, or a timer ends. While threads of the program poll, the serving thread sleeps on the timer alone and
/// checks from time to time whether they still poll. Pollers put that check off. Any thread, unless a comment states
/// otherwise.
class Alarm {
 public:
  Alarm() = default;
  ~Alarm() { kick_.close(); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  /// EMFILE, ENFILE, ENOMEM.
  Result<void> open();
  /// In a child of fork(): the descriptors are its parent's.
  void close();

  /// A packet is to be sent, or a timer ends, at `deadline`: the serving thread is awake by then.
  void expect(int64_t deadline) {
    if (!schedule_.expect(deadline)) return;
    wake_by(deadline);
  }
  /// The earliest deadline of expect().
  int64_t earliest() const { return schedule_.earliest(); }
  /// Call it before the source goes through all its deadlines and expects the earliest again.
  void forget() { schedule_.forget(); }
  /// Wakes the serving thread now.
  void kick() { kick_.signal(); }

  /// A poller looked for packets at `now`, so the serving thread need not check whether threads poll. `seen(now)`
  /// returns the counters that it would see. One poller at a time.
  template <typename Seen>
  void put_off_look(int64_t now, const Seen& seen) {
    if (now >= put_off_ns_.load(std::memory_order_acquire)) put_off(seen(now));
  }

  // Functions for the serving thread.
  /// The two descriptors that it sleeps on.
  int kick_fd() const { return kick_.fd(); }
  int watchdog_fd() const { return watchdog_.fd(); }
  /// Announces the sleep and then reads the earliest deadline, which it returns. A thread that expects an earlier one
  /// after this sees that it has to kick.
  int64_t fall_asleep() { return schedule_.fall_asleep(); }
  /// It will sleep until then, unless pollers put it off.
  void watch_until(int64_t until_ns, const PollsSeen& seen);
  /// It is awake: clears the kick or the timer that woke it.
  void wake_up(bool kicked, bool timed);

 private:
  /// Wakes the serving thread, which would sleep longer than `deadline`.
  void wake_by(int64_t deadline);
  [[gnu::noinline]] void put_off(const PollsSeen& seen);
  void watch(int64_t until_ns, const PollsSeen& seen);

  Schedule schedule_;
  WakeUp kick_;
  TimerDescriptor watchdog_;
  std::atomic<int64_t> put_off_ns_{INT64_MAX};  ///< from then on pollers put the check off; INT64_MAX: no check
  // The state when the check was put off last; put_off_ns_ releases it. The serving thread and a poller may write it at
  // the same time; then there is one needless check.
  std::atomic<int64_t> before_ns_{0};
  std::atomic<uint64_t> polls_before_{0};
  std::atomic<uint64_t> packets_before_{0};
};

}  // namespace nupa::progress
