// SPDX-License-Identifier: Apache-2.0
#include "progress/alarm.h"

#include "base/clock.h"

namespace nupa::progress {
namespace {

/// The serving thread is woken at once for deadlines that are this close. For later ones its timer is set, because a
/// thread that is woken may take the core of the thread that wakes it.
constexpr int64_t kSoonNs = 20'000;

}  // namespace

Result<void> Alarm::open() {
  if (auto opened = kick_.open(); !opened) return opened;
  return watchdog_.open();
}

void Alarm::close() {
  kick_.close();
  watchdog_.close();
}

void Alarm::wake_by(int64_t deadline) {
  if (deadline <= base::now_ns() + kSoonNs) return kick();
  // Two threads may be here at the same time, and the one with the earlier time may set the timer first.
  for (int64_t at = deadline;;) {
    watchdog_.set(at);
    const int64_t earliest = schedule_.earliest();
    if (earliest >= at) return;
    at = earliest;
  }
}

void Alarm::watch_until(int64_t until_ns, const PollsSeen& seen) {
  schedule_.sleep_until(until_ns);
  watch(until_ns, seen);
}

void Alarm::wake_up(bool kicked, bool timed) {
  schedule_.wake_up();
  put_off_ns_.store(INT64_MAX, std::memory_order_relaxed);
  if (kicked) kick_.take();
  if (timed) watchdog_.take();
}

void Alarm::watch(int64_t until_ns, const PollsSeen& seen) {
  before_ns_.store(seen.at_ns, std::memory_order_relaxed);
  polls_before_.store(seen.polls, std::memory_order_relaxed);
  packets_before_.store(seen.packets, std::memory_order_relaxed);
  watchdog_.set(until_ns);
  // Late in the interval, because setting a timer may cost as much as a message (an exit from a virtual machine).
  put_off_ns_.store(until_ns - (until_ns - seen.at_ns) / 8, std::memory_order_release);
}

void Alarm::put_off(const PollsSeen& seen) {
  const PollsSeen before{before_ns_.load(std::memory_order_relaxed), polls_before_.load(std::memory_order_relaxed),
                         packets_before_.load(std::memory_order_relaxed)};
  if (needs_no_look(before, seen))
    watch(seen.at_ns + ThreadPolicy::kLongestWatchNs, seen);
  else
    put_off_ns_.store(INT64_MAX, std::memory_order_relaxed);
}

}  // namespace nupa::progress
