#include "ccl/coroutine/waiter.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

#include "base/clock.h"
#include "base/fence.h"

namespace nupa::ccl {
namespace {

/// Looks between two at the clock and at what goes on around.
constexpr uint32_t kLooks = 64;
constexpr uint32_t kWireLooks = 8;  ///< each of which is a system call
/// Where ranks share cores, before others are let run: what is waited for may be theirs to do.
constexpr uint32_t kFewLooks = 8;
/// Where they do not, the system may have put two on one core all the same, for a while: others are let run after so
/// many turns each time, which takes a processor that nobody else wants less than a microsecond.
constexpr int kTurnsBetweenYields = 3;
/// Who sleeps looks by itself after this time, for a rank may have died and told nobody.
constexpr int64_t kLongestSleepNs = 100'000'000;
/// Where a word may be counted up without a call that wakes.
constexpr int64_t kShortSleepNs = 100'000;
constexpr int64_t kLongWaitNs = 100'000'000;
constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr size_t kMaxWords = 64;  ///< of one sleep; FUTEX_WAITV takes twice as many

int futex(const std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* limit) {
  return static_cast<int>(syscall(SYS_futex, word, operation, value, limit, nullptr, 0));
}

/// Makes each store that another thread or process has done before its next load be seen before that load, as a fence
/// there would. False: the kernel cannot.
bool fence_others() { return syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0; }

bool is_early(const WaitRules& rules, int64_t waited_ns) { return waited_ns < rules.spin_ns; }

uint32_t looks(const WaitRules& rules) { return rules.shares_cores ? kFewLooks : kLooks; }

/// One stay asleep, by several words at once.
class Sleep {
 public:
  void add(const Wait& wait) {
    const bool wakes = wait.sleepers != nullptr && count_ < kMaxWords;
    if (wakes) waits_[count_++] = wait;
    all_wake_ = all_wake_ && wakes;
  }

  /// Until one of them changes, something else happens or `limit_ns` has passed.
  void run(const WaitRules& rules, Surroundings& around, int64_t limit_ns) {
    // Wires wake nobody who sleeps at words.
    if (!all_wake_) return around.sleep(std::min(limit_ns, count_ > 0 ? kShortSleepNs : kLongestSleepNs));
    for (size_t i = 0; i < count_; ++i) {
      values_[i] = waits_[i].word->load(std::memory_order_acquire);
      waits_[i].sleepers->fetch_add(1, std::memory_order_seq_cst);
    }
    // Either the other one sees that somebody sleeps, or what it told is seen here.
    base::fence_after_update();
    const bool certain = rules.shares_cores || fence_others();
    const bool over = std::any_of(waits_, waits_ + count_, [](const Wait& wait) { return wait.is_over(); });
    if (!over && !around.ended()) stay(std::min(limit_ns, certain ? kLongestSleepNs : kShortSleepNs));
    for (size_t i = 0; i < count_; ++i) waits_[i].sleepers->fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  void stay(int64_t limit_ns) {
    timespec limit{limit_ns / kNsPerSecond, limit_ns % kNsPerSecond};
    if (count_ == 1) {
      futex(waits_[0].word, FUTEX_WAIT, values_[0], &limit);
      return;
    }
    futex_waitv words[kMaxWords] = {};
    for (size_t i = 0; i < count_; ++i)
      words[i] = {values_[i], reinterpret_cast<uint64_t>(waits_[i].word), FUTEX_32, 0};
    timespec until{};
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += limit.tv_nsec;
    until.tv_sec += limit.tv_sec + until.tv_nsec / kNsPerSecond;
    until.tv_nsec %= kNsPerSecond;
    const long woken = syscall(SYS_futex_waitv, words, count_, 0, &until, CLOCK_MONOTONIC);
    if (woken < 0 && (errno == ENOSYS || errno == EPERM)) {
      const timespec pause{0, std::min(limit_ns, kShortSleepNs)};
      nanosleep(&pause, nullptr);
    }
  }

  Wait waits_[kMaxWords];
  uint32_t values_[kMaxWords];
  size_t count_ = 0;
  bool all_wake_ = true;
};

/// Several operations of one rank.
class Run {
 public:
  Run(std::span<Steps> all, const WaitRules& rules, Surroundings& around, int64_t limit_ns)
      : all_(all), rules_(rules), around_(around), limit_ns_(limit_ns), observes_(around.observes_waits()) {}

  int to_end() {
    while (go_on()) observes_ ? wait_observed() : wait();
    for (const Steps& steps : all_)
      if (steps.result() != 0) return steps.result();
    return 0;
  }

 private:
  /// False: all are done.
  bool go_on() {
    if (const Cause cause = around_.ended(); cause) {
      for (Steps& steps : all_)
        if (!steps.is_done()) steps.end(cause.error);
      return false;
    }
    bool more = false;
    for (Steps& steps : all_)
      if (!steps.is_done() && !steps.go_on()) more = true;
    return more;
  }

  bool may_go_on() const {
    for (const Steps& steps : all_)
      if (!steps.is_done() && steps.waits_for().is_over()) return true;
    return false;
  }
  /// What comes by wires comes only when somebody looks there.
  bool waits_at_wire() const {
    for (const Steps& steps : all_)
      if (!steps.is_done() && steps.waits_for().sleepers == nullptr) return true;
    return false;
  }
  bool look_for_a_while() const {
    if (waits_at_wire()) {
      for (uint32_t i = 0; i < kWireLooks; ++i) {
        if (may_go_on()) return true;
        around_.look();
      }
      return may_go_on();
    }
    for (uint32_t i = 0; i < looks(rules_); ++i) {
      if (may_go_on()) return true;
      _mm_pause();
    }
    return false;
  }
  const Wait& first_wait() const {
    return std::find_if(all_.begin(), all_.end(), [](const Steps& steps) { return !steps.is_done(); })->waits_for();
  }

  void wait_observed() {
    const Wait waited = first_wait();
    const int64_t began = base::now_ns();
    wait();
    around_.on_waited(waited, began, base::now_ns());
  }
  void wait() {
    if (look_for_a_while()) return;
    const int64_t began = base::now_ns();
    const int64_t asked = wait_from(began);
    if (asked != began) around_.note_long_wait_for(kNoRank);
  }
  /// Returns when others were asked last, or `began`.
  int64_t wait_from(int64_t began) {
    int64_t asked = began;
    for (int turn = 0;; ++turn) {
      around_.look();
      if (may_go_on() || around_.ended()) return asked;
      const int64_t now = base::now_ns();
      if (now - began >= limit_ns_) {
        around_.on_timeout(first_wait());
        return asked;
      }
      if (now - asked >= kLongWaitNs) {
        asked = now;
        around_.note_long_wait_for(first_wait().rank);
        around_.on_long_wait(first_wait(), now - began >= limit_ns_ / 2);
      }
      if (!is_early(rules_, now - began)) {
        sleep(began + limit_ns_ - now);
        continue;
      }
      if (rules_.shares_cores || turn % kTurnsBetweenYields == kTurnsBetweenYields - 1) sched_yield();
      if (!rules_.shares_cores && look_for_a_while()) return asked;
    }
  }
  void sleep(int64_t left_ns) {
    Sleep sleep;
    for (const Steps& steps : all_)
      if (!steps.is_done()) sleep.add(steps.waits_for());
    sleep.run(rules_, around_, left_ns);
  }

  const std::span<Steps> all_;
  const WaitRules& rules_;
  Surroundings& around_;
  const int64_t limit_ns_;
  const bool observes_;
};

}  // namespace

void Surroundings::sleep(int64_t limit_ns) {
  const timespec pause{0, std::min(limit_ns, kShortSleepNs)};
  nanosleep(&pause, nullptr);
}

void prepare_waiting() { syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0); }

void wake_all(const std::atomic<uint32_t>& word) { futex(&word, FUTEX_WAKE, INT_MAX, nullptr); }

void wake(const std::atomic<uint32_t>& word, const std::atomic<uint32_t>& sleepers, const WaitRules& rules) {
  if (rules.shares_cores)
    std::atomic_thread_fence(std::memory_order_seq_cst);
  else
    std::atomic_signal_fence(std::memory_order_seq_cst);
  if (__builtin_expect(sleepers.load(std::memory_order_relaxed) != 0, 0)) wake_all(word);
}

void count_up(std::atomic<uint32_t>& word, uint32_t value, const std::atomic<uint32_t>& sleepers,
              const WaitRules& rules) {
  word.store(value, std::memory_order_release);
  wake(word, sleepers, rules);
}

void wait_a_turn(std::span<const Wait> waits, const WaitRules& rules, Surroundings& around, int turn, int64_t began,
                 int64_t limit_ns) {
  const bool early = is_early(rules, base::now_ns() - began);
  if (early && rules.shares_cores && turn > 0) {
    sched_yield();
  } else if (early || turn == 0) {
    for (uint32_t i = 0; i < looks(rules); ++i) {
      if (std::any_of(waits.begin(), waits.end(), [](const Wait& wait) { return wait.is_over(); })) return;
      _mm_pause();
    }
  } else {
    Sleep sleep;
    for (const Wait& wait : waits) sleep.add(wait);
    sleep.run(rules, around, limit_ns);
  }
}

int run_steps(std::span<Steps> all, const WaitRules& rules, Surroundings& around, int64_t limit_ns) {
  return Run(all, rules, around, limit_ns).to_end();
}

}  // namespace nupa::ccl
