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
#include "transport/roce/port.h"

namespace nupa::roce {
namespace {

/// While threads of the program poll, the port's thread looks this often whether they still do; more seldom if they
/// have for long, since each look disturbs a poller on the same core.
constexpr int64_t kWatchNs = 250'000;
constexpr int64_t kLongestWatchNs = 1'000'000;
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

int poll_now(pollfd* ready, size_t count) {
  const timespec nothing{0, 0};
  return ppoll(ready, count, &nothing, nullptr);
}

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
    return fail(started.error().code, "cannot start the port's thread");
  running_ = true;
  return {};
}

void Port::kick() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(kick_.get(), &one, sizeof one);
}

bool Port::left_waiting() {
  if (!has_packets()) return false;
  // Somebody may be about to fetch them.
  const uint64_t before = polls_.load(std::memory_order_relaxed);
  pollfd kicked{kick_.get(), POLLIN, 0};
  const timespec pause{0, kWaitedNs};
  ppoll(&kicked, 1, &pause, nullptr);
  return polls_.load(std::memory_order_relaxed) == before && has_packets();
}

int Port::own_fd() const { return own() == nullptr ? -1 : own()->socket().fd(); }

bool Port::has_packets() const {
  pollfd ready[] = {{socket().fd(), POLLIN, 0}, {own_fd(), POLLIN, 0}, {groups_.fd(), POLLIN, 0}};
  if (poll_now(ready, std::size(ready)) <= 0) return false;
  return std::any_of(std::begin(ready), std::end(ready), [](const pollfd& one) { return (one.revents & POLLIN) != 0; });
}

void Port::linger(std::unique_lock<std::mutex>& lock) {
  int64_t until = base::now_ns() + kLingerNs;
  while (base::now_ns() < until && !stop_ && wanted_.load(std::memory_order_relaxed) == 0) {
    if (handle(false)) {
      if (streams_) until = base::now_ns() + kLingerNs;
      continue;
    }
    lock.unlock();
    for (int i = 0; i < kLingerPauses; ++i) _mm_pause();
    lock.lock();
  }
  if (!touched_.empty()) answer(base::now_ns(), true);
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
    pollfd ready[] = {
        {kick_.get(), POLLIN, 0}, {socket().fd(), POLLIN, 0}, {own_fd(), POLLIN, 0}, {groups_.fd(), POLLIN, 0}};
    if (watches && slept_after_.load() != slept_after) continue;
    // First said, then looked: whoever sets an earlier time after the look sees that it has to kick.
    const int64_t earliest = schedule_.fall_asleep();
    const int64_t now = base::now_ns();
    int64_t wait = std::max<int64_t>(earliest - now, 0);
    if (watches) {
      wait = std::max(std::min(wait, watch), kWatchNs / 4);
      schedule_.sleep_until(now + wait);
    }
    timespec pause{wait / 1'000'000'000, wait % 1'000'000'000};
    const bool forever = earliest == INT64_MAX && !watches;
    ppoll(ready, watches ? 1 : std::size(ready), forever ? nullptr : &pause, nullptr);
    schedule_.wake_up();
    if ((ready[0].revents & POLLIN) != 0) {
      uint64_t count;
      [[maybe_unused]] const ssize_t got = ::read(kick_.get(), &count, sizeof count);
    }
    const bool refusals = !watches && ((ready[1].revents | ready[2].revents) & POLLERR) != 0;
    const bool left = watches && !is_due() && left_waiting();
    bool worked = false;
    if (!watches || left || is_due()) {
      // Whoever has the lock does what there is to do.
      std::unique_lock lock(receive_mutex_, std::defer_lock);
      if (wanted_.load(std::memory_order_relaxed) != 0) nanosleep(&kMakeWay, nullptr);
      if (watches ? lock.try_lock() : (lock.lock(), true)) {
        if (refusals) take_refusals();
        worked = handle(false);
      }
      if (worked && streams_ && !polled) linger(lock);
    }
    if (watches) {
      // A program that polls only now and then leaves packets waiting: they are worth a wake-up then.
      const uint64_t packets = counters_.packets.load(std::memory_order_relaxed);
      if (packets_seen != packets || quiet_since == 0) quiet_since = now;
      packets_seen = packets;
      if (now - quiet_since >= kQuietNs) warm_.store(false, std::memory_order_relaxed);
      // A program that says when it sleeps fetches what comes once it has its core again.
      waiting_turns = left && worked && slept_after == 0 ? waiting_turns + 1 : 0;
      watch = left ? kWatchNs : std::min(2 * watch, kLongestWatchNs);
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
