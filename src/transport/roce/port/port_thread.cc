/// The thread of a port: it receives while no thread of the program does, and looks after those that do.
#include <immintrin.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/clock.h"
#include "progress/descriptors.h"
#include "progress/neighbours.h"
#include "progress/signal_restart.h"
#include "transport/roce/port/port.h"

namespace nupa::roce {
namespace {

/// While threads of the program poll, the port's thread looks this often whether they still do; more seldom if they
/// have for long, since each look disturbs a poller on the same core, and not at all while pollers put it off.
constexpr int64_t kWatchNs = 250'000;
/// A packet that a polling program has not fetched after this long waits for nobody.
constexpr int64_t kWaitedNs = 40'000;
/// So often a thread still polls after it has said that it sleeps: once for each queue that it armed.
constexpr uint64_t kLastPolls = 4;
/// Turns of the watch in which packets had waited, before the thread waits for packets itself beside the pollers.
constexpr int kPatience = 3;
constexpr int kDevotion = 64;
/// After a part of a stream the thread stays awake for this long: to be woken costs the sender more, and it sends at
/// least as much in the meantime. Not beside a program that polls, whose own thread may need this core.
constexpr int64_t kLingerNs = 50'000;
/// Between two looks it leaves a core's other thread, which may be the sender's, in peace for about half a microsecond.
constexpr int kLingerPauses = 10;
/// For others to take the receive mutex.
constexpr timespec kMakeWay{0, 20'000};
/// Without any packet for this long this thread alone waits for the next one.
constexpr int64_t kQuietNs = 100'000'000;

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
  pollfd kicked{alarm_.kick_fd(), POLLIN, 0};
  const timespec pause{0, kWaitedNs};
  ppoll(&kicked, 1, &pause, nullptr);
  return polls_.load(std::memory_order_relaxed) == before && has_packets();
}

bool Port::has_packets() const { return progress::is_readable(right_.packets_fd()); }

bool Port::handle_woken(bool for_program) {
  const uint64_t before = counters_.packets.load(std::memory_order_relaxed);
  const bool worked = handle(for_program);
  if (counters_.packets.load(std::memory_order_relaxed) == before) {
    Hold hold(holds_);
    gone_.take_refusals(hold, sockets_, peer_sockets_);
  }
  return worked;
}

bool Port::look_for(int event_fd) {
  constinit thread_local progress::LookPolicy policy;
  progress::Neighbours& neighbours = progress::Neighbours::of_thread();
  if (neighbours.share_core() || !policy.looks()) return false;
  const auto packets = [&] { return counters_.packets.load(std::memory_order_relaxed); };
  const auto take = [&] {
    if (const std::unique_lock lock(receive_mutex_, std::try_to_lock); lock.owns_lock()) handle(true);
  };
  // What is there already says nothing about the use of a look.
  const uint64_t before = packets();
  take();
  const uint64_t packets_before = packets();
  if (packets_before != before && progress::is_readable(event_fd)) return true;
  uint64_t seen = packets_before;
  bool ready = false;
  int64_t until = base::now_ns() + progress::LookPolicy::kLookNs;
  for (uint32_t looks = 1; !ready; ++looks) {
    take();
    const bool came = packets() != seen;
    if (!came && looks % kLooksAtPackets != 0) continue;
    ready = progress::is_readable(event_fd);
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

core::Poller::Slept Port::sleep(int event_fd) {
  // While others poll they take the packets.
  if (!running_.load() || watches_.load()) return Slept::kCannot;
  const progress::AfterSignals after = progress::after_signals(base::now_ns());
  if (after == progress::AfterSignals::kMixed) return Slept::kCannot;
  const progress::ReceiveRight::Claim claim(right_);
  if (!claim) return Slept::kCannot;
  for (;;) {
    if (look_for(event_fd)) return Slept::kReady;
    // Nobody here does it later.
    finish_poll();
    pollfd ready[] = {{event_fd, POLLIN, 0}, {right_.packets_fd(), POLLIN, 0}};
    const auto woken = progress::wait_descriptors(ready, progress::Deadline::never(), progress::Signals::kReturn);
    if (!woken) {
      if (woken.error().code() != EINTR) return Slept::kCannot;
      if (progress::look_at_handlers() != progress::AfterSignals::kRestart) return Slept::kSignal;
      continue;
    }
    if (ready[0].revents != 0) return Slept::kReady;
    const auto lock = claim_receiving();
    handle_woken(true);
    // Its answer leaves with what the program sends next.
    if (progress::is_readable(event_fd)) return Slept::kReady;
  }
}

void Port::linger(std::unique_lock<std::mutex>& lock) {
  int64_t until = base::now_ns() + kLingerNs;
  while (base::now_ns() < until && !stop_ && wanted_.load(std::memory_order_relaxed) == 0) {
    if (handle(false)) {
      if (acks_.streams()) until = base::now_ns() + kLingerNs;
      continue;
    }
    lock.unlock();
    for (int i = 0; i < kLingerPauses; ++i) _mm_pause();
    lock.lock();
  }
  answer_all();
}

void Port::serve() {
  ask_for_short_slices();
  uint64_t polls = 0;
  uint64_t packets_seen = 0;
  int64_t watch = kWatchNs;
  int64_t quiet_since = 0;
  int waiting_turns = 0;  // of late, in which packets had waited although the program polls
  int devoted = 0;        // turns left in which this thread waits for packets beside the pollers
  while (!stop_) {
    const uint64_t before = std::exchange(polls, polls_.load(std::memory_order_relaxed));
    const uint64_t slept_after = slept_after_.load();
    const bool polled = polls != before && polls > slept_after + kLastPolls;
    const bool watches = polled && devoted == 0;
    watches_.store(watches);
    pollfd ready[] = {{alarm_.kick_fd(), POLLIN, 0},
                      {alarm_.watchdog_fd(), POLLIN, 0},
                      {watches ? -1 : right_.thread_fd(), POLLIN, 0}};
    if (watches && slept_after_.load() != slept_after) continue;
    const int64_t earliest = alarm_.fall_asleep();
    const int64_t now = base::now_ns();
    int64_t wait = std::max<int64_t>(earliest - now, 0);
    if (watches) {
      wait = std::max(std::min(wait, watch), kWatchNs / 4);
      alarm_.watch_until(now + wait, {now, polls, counters_.packets.load(std::memory_order_relaxed)});
    }
    timespec pause{wait / 1'000'000'000, wait % 1'000'000'000};
    const bool forever = earliest == INT64_MAX || watches;
    ppoll(ready, std::size(ready), forever ? nullptr : &pause, nullptr);
    alarm_.wake_up((ready[0].revents & POLLIN) != 0, (ready[1].revents & POLLIN) != 0);
    // The program has turned to something long: packets wake this thread again.
    if ((ready[2].revents & POLLIN) != 0 && right_.end_loan()) continue;
    const bool left = watches && !is_due() && left_waiting();
    bool worked = false;
    if (!watches || left || is_due()) {
      // Whoever has the lock does what there is to do.
      std::unique_lock lock(receive_mutex_, std::defer_lock);
      if (wanted_.load(std::memory_order_relaxed) != 0) nanosleep(&kMakeWay, nullptr);
      const bool woken = left || (ready[2].revents & POLLIN) != 0;
      if (watches ? lock.try_lock() : (lock.lock(), true)) worked = woken ? handle_woken(false) : handle(false);
      if (worked && acks_.streams() && !polled) linger(lock);
    }
    if (watches) {
      // A program that polls only now and then leaves packets waiting: they are worth a wake-up then.
      const uint64_t packets = counters_.packets.load(std::memory_order_relaxed);
      if (packets_seen != packets || quiet_since == 0) quiet_since = now;
      packets_seen = packets;
      if (now - quiet_since >= kQuietNs) warm_.store(false, std::memory_order_relaxed);
      // A program that says when it sleeps fetches what comes once it has its core again.
      waiting_turns = left && worked && slept_after == 0 ? waiting_turns + 1 : 0;
      watch = left ? kWatchNs : std::min(2 * watch, Alarm::kLongestWatchNs);
      if (waiting_turns >= kPatience) devoted = kDevotion;
      continue;
    }
    quiet_since = 0;
    watch = kWatchNs;
    if (devoted > 0) {
      --devoted;
      if (worked && devoted == 0) devoted = kDevotion;
      if (devoted == 0) waiting_turns = 0;
    }
  }
}

}  // namespace nupa::roce
