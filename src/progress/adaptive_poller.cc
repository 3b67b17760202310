// SPDX-License-Identifier: Apache-2.0
/// The serving thread, which takes packets while no thread of the program does, and the threads of the program that
/// take them in its place.
#include "progress/adaptive_poller.h"

#include <poll.h>

#include <cerrno>

#include "base/clock.h"
#include "progress/cpu.h"
#include "progress/descriptors.h"
#include "progress/event_catch.h"
#include "progress/neighbours.h"
#include "progress/short_slices.h"
#include "progress/signal_restart.h"
#include "progress/waiter.h"

namespace nupa::progress {
namespace {

/// Pauses between two looks, about half a microsecond: the other hyperthread of the core may be the sender.
constexpr int kLingerPauses = 10;
/// The time for other threads to take the lock of the turns.
constexpr int64_t kYieldNs = 20'000;
/// Cheap looks for packets between two expensive checks: whether the event's descriptor is readable, and whether other
/// threads want the core.
constexpr uint32_t kLooksAtPackets = 8;

}  // namespace

Result<void> AdaptivePoller::open() {
  if (auto opened = alarm_.open(); !opened) return opened;
  return right_.open();
}

Result<void> AdaptivePoller::start(ThreadName name) {
  std::lock_guard lock(start_mutex_);
  if (running_) return {};
  if (const auto started = thread_.start(name, [this] { serve(); }); !started) return tl::unexpected(started.error());
  running_ = true;
  return {};
}

void AdaptivePoller::stop() {
  if (!running_) return;
  stop_ = true;
  alarm_.kick();
  thread_.join();
  running_ = false;
}

void AdaptivePoller::in_child() {
  running_ = false;
  right_.close();
  alarm_.close();
  turn_mutex_.unlock();
}

std::unique_lock<std::mutex> AdaptivePoller::claim() {
  wanted_.fetch_add(1);
  std::unique_lock lock(turn_mutex_);
  wanted_.fetch_sub(1);
  return lock;
}

void AdaptivePoller::poll() {
  polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (const std::unique_lock lock(turn_mutex_, std::try_to_lock); lock.owns_lock()) {
    source_.take_turn(Receiver::kPoller);
    return;
  }
  thread_local uint32_t shut_out = 0;
  if (PollPolicy::yields_to_receiver(++shut_out)) yield();
}

void AdaptivePoller::finish_poll() {
  if (const std::unique_lock lock(turn_mutex_, std::try_to_lock); lock.owns_lock()) source_.finish_turns();
}

void AdaptivePoller::program_sleeps() {
  slept_after_.store(polls_.load(std::memory_order_relaxed) + 1);
  if (watches_.load()) alarm_.kick();
}

bool AdaptivePoller::is_due() const { return base::now_ns() >= wanted_at(); }

bool AdaptivePoller::has_packets() const { return is_readable(right_.packets_fd()); }

bool AdaptivePoller::left_waiting() {
  if (!has_packets()) return false;
  // A polling thread may be about to take them.
  const uint64_t before = polls_.load(std::memory_order_relaxed);
  [[maybe_unused]] const auto kicked = wait_readable(alarm_.kick_fd(), Deadline::in_ns(ThreadPolicy::kWaitedNs));
  return polls_.load(std::memory_order_relaxed) == before && has_packets();
}

bool AdaptivePoller::take_woken_turn(Receiver receiver) {
  const uint64_t before = source_.packets();
  const bool worked = source_.take_turn(receiver);
  if (source_.packets() == before) source_.take_errors();
  return worked;
}

bool AdaptivePoller::look_for(const EventCatch& events) {
  constinit thread_local LookPolicy policy;
  Neighbours& neighbours = Neighbours::of_thread();
  if (neighbours.share_core() || !policy.looks()) return false;
  const auto take = [&] {
    if (const std::unique_lock lock(turn_mutex_, std::try_to_lock); lock.owns_lock())
      source_.take_turn(Receiver::kPoller);
  };
  // Packets that are there already do not show whether a look is of use.
  const uint64_t before = source_.packets();
  take();
  const uint64_t packets_before = source_.packets();
  if (packets_before != before && events.is_there()) return true;
  uint64_t seen = packets_before;
  bool ready = false;
  int64_t until = base::now_ns() + LookPolicy::kLookNs;
  for (uint32_t looks = 1; !ready; ++looks) {
    take();
    const bool came = source_.packets() != seen;
    if (!came && looks % kLooksAtPackets != 0) continue;
    ready = events.is_there();
    if (ready) break;
    const int64_t now = base::now_ns();
    if (came) {
      seen = source_.packets();
      until = now + LookPolicy::kLookNs;
    } else if (now >= until) {
      break;
    } else {
      neighbours.yield();
    }
  }
  policy.looked(ready || source_.packets() != packets_before);
  return ready;
}

Poller::Slept AdaptivePoller::sleep(EventCatch& events) {
  // Polling threads take the packets.
  if (!running_.load() || watches_.load()) return Slept::kCannot;
  if (after_signals(base::now_ns()) == AfterSignals::kMixed) return Slept::kCannot;
  const ReceiveRight::Claim right(right_);
  if (!right) return Slept::kCannot;
  for (;;) {
    if (look_for(events)) return Slept::kReady;
    // No later poll of this thread will do it.
    finish_poll();
    pollfd ready[] = {{events.fd(), POLLIN, 0}, {right_.packets_fd(), POLLIN, 0}};
    if (!events.begin_sleep()) return Slept::kReady;
    const bool sleeps = source_.begin_sleep(Receiver::kSleeper);
    const auto woken = wait_descriptors(ready, sleeps ? Deadline::never() : Deadline::in_ns(0), Signals::kReturn);
    if (sleeps) source_.end_sleep(Receiver::kSleeper, ready[1].revents != 0);
    events.end_sleep();
    if (!woken) {
      if (woken.error().code() != EINTR) return Slept::kCannot;
      if (look_at_handlers() != AfterSignals::kRestart) return Slept::kSignal;
      continue;
    }
    if (ready[0].revents != 0) return Slept::kReady;
    const auto lock = claim();
    take_woken_turn(Receiver::kSleeper);
    // Its acknowledgement leaves with the program's next packet.
    if (events.is_there()) return Slept::kReady;
  }
}

void AdaptivePoller::linger(std::unique_lock<std::mutex>& lock) {
  LingerPolicy policy(base::now_ns());
  while (policy.goes_on(base::now_ns()) && !stop_ && wanted_.load(std::memory_order_relaxed) == 0) {
    if (source_.take_turn(Receiver::kThread)) {
      if (source_.streams()) policy.stream_came(base::now_ns());
      continue;
    }
    lock.unlock();
    for (int i = 0; i < kLingerPauses; ++i) relax();
    lock.lock();
  }
  source_.finish_turns();
}

void AdaptivePoller::serve() {
  ask_for_short_slices();
  ThreadPolicy policy;
  LookPolicy looks;
  while (!stop_) {
    const ThreadPolicy::Seen seen{polls_.load(std::memory_order_relaxed), slept_after_.load()};
    const bool watches = policy.begin(seen) == ThreadPolicy::Step::kSleepForTimers;
    watches_.store(watches);
    pollfd ready[] = {{alarm_.kick_fd(), POLLIN, 0},
                      {alarm_.watchdog_fd(), POLLIN, 0},
                      {watches ? -1 : right_.thread_fd(), POLLIN, 0}};
    if (watches && slept_after_.load() != seen.slept_after) continue;
    const int64_t earliest = alarm_.fall_asleep();
    // A program that takes the packets itself announces its own sleep. This thread wakes up when it has the right
    // again.
    const bool announces = !watches && !right_.is_of_program();
    const bool sleeps = !announces || source_.begin_sleep(Receiver::kThread);
    const int64_t now = base::now_ns();
    const int64_t until = sleeps ? policy.sleeps_until(earliest, now) : now;
    if (watches) alarm_.watch_until(until, {now, seen.polls, source_.packets()});
    // The timer of the watch can be put off; a limit of the sleep itself could not.
    const auto limit = watches ? Deadline::never() : Deadline::at(until);
    [[maybe_unused]] const auto woken_by = wait_descriptors(ready, limit, Signals::kIgnore);
    if (sleeps && announces) source_.end_sleep(Receiver::kThread, (ready[2].revents & POLLIN) != 0);
    alarm_.wake_up((ready[0].revents & POLLIN) != 0, (ready[1].revents & POLLIN) != 0);
    // The program is busy with other work, so packets wake this thread again.
    if ((ready[2].revents & POLLIN) != 0 && right_.end_grant()) continue;
    const bool left = watches && !is_due() && left_waiting();
    bool worked = false;
    if (!watches || left || is_due()) {
      // A thread that holds the lock already does all pending work.
      std::unique_lock lock(turn_mutex_, std::defer_lock);
      if (wanted_.load(std::memory_order_relaxed) != 0) sleep_for(kYieldNs);
      const bool woken = left || (ready[2].revents & POLLIN) != 0;
      if (watches ? lock.try_lock() : (lock.lock(), true))
        worked = woken ? take_woken_turn(Receiver::kThread) : source_.take_turn(Receiver::kThread);
      // A sender that shares this core sends nothing while this thread is awake. If its packets wake nothing, a sleep
      // until the next look is then shorter than the time awake.
      if (worked && policy.lingers(source_.streams()) && (source_.wakes() || looks.looks())) {
        const uint64_t before = source_.packets();
        linger(lock);
        looks.looked(source_.packets() != before);
      }
    }
    if (policy.end({now, source_.packets(), left, worked})) warm_.store(false, std::memory_order_relaxed);
  }
}

}  // namespace nupa::progress
