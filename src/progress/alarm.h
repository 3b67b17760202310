// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

#include "progress/poll_policy.h"
#include "progress/schedule.h"
#include "progress/timer_descriptor.h"
#include "progress/wake_up.h"

namespace nupa::progress {

/// What wakes the serving thread beside packets: a thread that expects something before the serving thread wakes by
/// itself, and the clock. While threads of the program poll, the serving thread sleeps on the clock alone, and looks
/// from time to time whether they still do; pollers put that look off. Any thread, except where said.
class Alarm {
 public:
  Alarm() = default;
  ~Alarm() { kick_.close(); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  /// EMFILE, ENFILE, ENOMEM.
  Result<void> open();
  /// In a child: they are its parent's.
  void close();

  /// Something is to be sent or timed at `deadline`: the serving thread is awake by then.
  void expect(int64_t deadline) {
    if (!schedule_.expect(deadline)) return;
    wake_by(deadline);
  }
  /// The earliest of what is expected.
  int64_t earliest() const { return schedule_.earliest(); }
  /// Before all deadlines are looked at, of which the earliest is expected after that.
  void forget() { schedule_.forget(); }
  /// The serving thread looks at everything now.
  void kick() { kick_.signal(); }

  /// A poller looked for packets at `now`: the serving thread need not look whether somebody does. `seen(now)` is what
  /// it would see. One poller at a time.
  template <typename Seen>
  void put_off_look(int64_t now, const Seen& seen) {
    if (now >= put_off_ns_.load(std::memory_order_relaxed)) put_off(seen(now));
  }

  // The serving thread.
  /// It sleeps on both.
  int kick_fd() const { return kick_.fd(); }
  int watchdog_fd() const { return watchdog_.fd(); }
  /// First said, then looked: a thread that sets an earlier time after this sees that it has to kick. Returns the
  /// earliest of what is expected.
  int64_t fall_asleep() { return schedule_.fall_asleep(); }
  /// It sleeps until then, unless pollers put it off.
  void watch_until(int64_t until_ns, const PollsSeen& seen);
  /// It is awake. What woke it does so once.
  void wake_up(bool kicked, bool timed);

 private:
  /// The serving thread sleeps for longer.
  void wake_by(int64_t deadline);
  [[gnu::noinline]] void put_off(const PollsSeen& seen);
  void watch(int64_t until_ns, const PollsSeen& seen);

  Schedule schedule_;
  WakeUp kick_;
  TimerDescriptor watchdog_;
  std::atomic<int64_t> put_off_ns_{INT64_MAX};  ///< from then on pollers put the look off; INT64_MAX: there is none
  // As the look was put off last. The serving thread and a poller may write them at once: then a look comes that need
  // not.
  std::atomic<int64_t> before_ns_{0};
  std::atomic<uint64_t> polls_before_{0};
  std::atomic<uint64_t> packets_before_{0};
};

}  // namespace nupa::progress
