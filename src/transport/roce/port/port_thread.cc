// SPDX-License-Identifier: Apache-2.0
/// The thread of a port: it receives while no thread of the program does, and looks after those that do.
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/clock.h"
#include "progress/cpu.h"
#include "progress/descriptors.h"
#include "progress/event_catch.h"
#include "progress/neighbours.h"
#include "progress/poll_policy.h"
#include "progress/signal_restart.h"
#include "progress/waiter.h"
#include "transport/roce/port/port.h"

namespace nupa::roce {
namespace {

/// Between two looks it leaves a core's other thread, which may be the sender's, in peace for about half a microsecond.
constexpr int kLingerPauses = 10;
/// For others to take the receive mutex.
constexpr int64_t kMakeWayNs = 20'000;
/// Looks for packets between two that are dear: at the descriptor of the event, and whether others want the core.
constexpr uint32_t kLooksAtPackets = 8;

/// The scheduler lets a thread with short slices run soon after it wakes, beside programs that never sleep (EEVDF,
/// Linux 6.12). Where it does not know them nothing changes.
void ask_for_short_slices() {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } attributes{};
  constexpr uint64_t kSliceNs = 100'000;  // the least that it takes
  attributes.size = sizeof attributes;
  attributes.nice = getpriority(PRIO_PROCESS, 0);
  attributes.runtime = kSliceNs;
  // A thread with another policy was given it on purpose.
  if (sched_getscheduler(0) == SCHED_OTHER) syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace

Result<void> Port::start() {
  std::lock_guard lock(start_mutex_);
  if (running_) return {};
  if (const auto started = thread_.start("nupa-roce", [this] { serve(); }); !started)
    return fail(started.error().code(), "cannot start the port's thread");
  running_ = true;
  return {};
}

bool Port::left_waiting() {
  if (!has_packets()) return false;
  // Somebody may be about to fetch them.
  const uint64_t before = polls_.load(std::memory_order_relaxed);
  const auto until = progress::Deadline::in_ns(progress::ThreadPolicy::kWaitedNs);
  [[maybe_unused]] const auto kicked = progress::wait_readable(alarm_.kick_fd(), until);
  return polls_.load(std::memory_order_relaxed) == before && has_packets();
}

bool Port::has_packets() const { return progress::is_readable(right_.packets_fd()); }

bool Port::handle_woken(Receiver receiver) {
  const uint64_t before = counters_.packets.load(std::memory_order_relaxed);
  const bool worked = handle(receiver);
  if (counters_.packets.load(std::memory_order_relaxed) == before) {
    Hold hold(holds_);
    gone_.take_refusals(hold, sockets_, peer_sockets_);
  }
  return worked;
}

bool Port::look_for(const progress::EventCatch& events) {
  constinit thread_local progress::LookPolicy policy;
  progress::Neighbours& neighbours = progress::Neighbours::of_thread();
  if (neighbours.share_core() || !policy.looks()) return false;
  const auto packets = [&] { return counters_.packets.load(std::memory_order_relaxed); };
  const auto take = [&] {
    if (const std::unique_lock lock(receive_mutex_, std::try_to_lock); lock.owns_lock()) handle(Receiver::kPoller);
  };
  // What is there already says nothing about the use of a look.
  const uint64_t before = packets();
  take();
  const uint64_t packets_before = packets();
  if (packets_before != before && events.is_there()) return true;
  uint64_t seen = packets_before;
  bool ready = false;
  int64_t until = base::now_ns() + progress::LookPolicy::kLookNs;
  for (uint32_t looks = 1; !ready; ++looks) {
    take();
    const bool came = packets() != seen;
    if (!came && looks % kLooksAtPackets != 0) continue;
    ready = events.is_there();
    if (ready) break;
    const int64_t now = base::now_ns();
    if (came) {
      seen = packets();
      until = now + progress::LookPolicy::kLookNs;
    } else if (now >= until) {
      break;
    } else {
      neighbours.yield();
    }
  }
  policy.looked(ready || packets() != packets_before);
  return ready;
}

core::Poller::Slept Port::sleep(progress::EventCatch& events) {
  // While others poll they take the packets.
  if (!running_.load() || watches_.load()) return Slept::kCannot;
  const progress::AfterSignals after = progress::after_signals(base::now_ns());
  if (after == progress::AfterSignals::kMixed) return Slept::kCannot;
  const progress::ReceiveRight::Claim claim(right_);
  if (!claim) return Slept::kCannot;
  for (;;) {
    if (look_for(events)) return Slept::kReady;
    // Nobody here does it later.
    finish_poll();
    pollfd ready[] = {{events.fd(), POLLIN, 0}, {right_.packets_fd(), POLLIN, 0}};
    if (!events.begin_sleep()) return Slept::kReady;
    const auto woken = progress::wait_descriptors(ready, progress::Deadline::never(), progress::Signals::kReturn);
    events.end_sleep();
    if (!woken) {
      if (woken.error().code() != EINTR) return Slept::kCannot;
      if (progress::look_at_handlers() != progress::AfterSignals::kRestart) return Slept::kSignal;
      continue;
    }
    if (ready[0].revents != 0) return Slept::kReady;
    const auto lock = claim_receiving();
    handle_woken(Receiver::kSleeper);
    // Its answer leaves with what the program sends next.
    if (events.is_there()) return Slept::kReady;
  }
}

void Port::linger(std::unique_lock<std::mutex>& lock) {
  progress::LingerPolicy policy(base::now_ns());
  while (policy.goes_on(base::now_ns()) && !stop_ && wanted_.load(std::memory_order_relaxed) == 0) {
    if (handle(Receiver::kPort)) {
      if (acks_.streams()) policy.stream_came(base::now_ns());
      continue;
    }
    lock.unlock();
    for (int i = 0; i < kLingerPauses; ++i) progress::relax();
    lock.lock();
  }
  answer_all();
}

void Port::serve() {
  using progress::ThreadPolicy;
  ask_for_short_slices();
  ThreadPolicy policy;
  while (!stop_) {
    const ThreadPolicy::Seen seen{polls_.load(std::memory_order_relaxed), slept_after_.load()};
    const bool watches = policy.begin(seen) == ThreadPolicy::Step::kSleepForTimers;
    watches_.store(watches);
    pollfd ready[] = {{alarm_.kick_fd(), POLLIN, 0},
                      {alarm_.watchdog_fd(), POLLIN, 0},
                      {watches ? -1 : right_.thread_fd(), POLLIN, 0}};
    if (watches && slept_after_.load() != seen.slept_after) continue;
    const int64_t earliest = alarm_.fall_asleep();
    const int64_t now = base::now_ns();
    const int64_t until = policy.sleeps_until(earliest, now);
    if (watches) alarm_.watch_until(until, {now, seen.polls, counters_.packets.load(std::memory_order_relaxed)});
    // The timer of the watch may be put off, the sleep's own limit could not.
    const auto limit = watches ? progress::Deadline::never() : progress::Deadline::at(until);
    [[maybe_unused]] const auto woken_by = progress::wait_descriptors(ready, limit, progress::Signals::kIgnore);
    alarm_.wake_up((ready[0].revents & POLLIN) != 0, (ready[1].revents & POLLIN) != 0);
    // The program has turned to something long: packets wake this thread again.
    if ((ready[2].revents & POLLIN) != 0 && right_.end_loan()) continue;
    const bool left = watches && !is_due() && left_waiting();
    bool worked = false;
    if (!watches || left || is_due()) {
      // A thread that has the lock already does what there is to do.
      std::unique_lock lock(receive_mutex_, std::defer_lock);
      if (wanted_.load(std::memory_order_relaxed) != 0) progress::sleep_for(kMakeWayNs);
      const bool woken = left || (ready[2].revents & POLLIN) != 0;
      if (watches ? lock.try_lock() : (lock.lock(), true))
        worked = woken ? handle_woken(Receiver::kPort) : handle(Receiver::kPort);
      if (worked && policy.lingers(acks_.streams())) linger(lock);
    }
    if (policy.end({now, counters_.packets.load(std::memory_order_relaxed), left, worked}))
      warm_.store(false, std::memory_order_relaxed);
  }
}

}  // namespace nupa::roce
