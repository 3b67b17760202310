// SPDX-License-Identifier: Apache-2.0
#include "ccl/coroutine/waiter.h"

#include <algorithm>

#include "base/clock.h"
#include "progress/cpu.h"
#include "progress/waiter.h"

namespace nupa::ccl {
namespace {

/// Number of checks of a word between two calls of the progress hooks and two reads of the clock.
constexpr uint32_t kLooks = 64;
constexpr uint32_t kWireLooks = 8;  ///< the same for RDMA, where each check is a system call
/// Number of checks before a yield where ranks share cores: the awaited rank may need this core.
constexpr uint32_t kFewLooks = 8;
/// Turns between two yields where ranks do not share cores: the scheduler may still have put two ranks on one core for
/// a while. A yield takes less than a microsecond on a core that no other thread wants.
constexpr int kTurnsBetweenYields = 3;
/// A waiting rank checks at this interval whether the awaited rank is alive.
constexpr int64_t kLongWaitNs = 100'000'000;

bool is_early(const WaitRules& rules, int64_t waited_ns) { return waited_ns < rules.spin_ns; }

uint32_t looks(const WaitRules& rules) { return rules.shares_cores ? kFewLooks : kLooks; }

/// Sleeps until a word of `sleep` is counted up, an RDMA completion arrives or the deadline passes.
void sleep_at(progress::WordSleep& sleep, const WaitRules& rules, ProgressHooks& hooks, progress::Deadline deadline) {
  if (sleep.all_wake()) {
    sleep.run(
        rules.fences(), [&] { return !hooks.ended(); }, deadline);
    return;
  }
  // An RDMA completion does not wake a thread that sleeps at a word.
  const int64_t longest = sleep.words() > 0 ? progress::kWordNapNs : progress::kLongestWordSleepNs;
  hooks.sleep(std::min(deadline.left_ns(base::now_ns()), longest));
}

/// Runs several tasks of one rank.
class Run {
 public:
  Run(std::span<CollectiveTask> all, const WaitRules& rules, ProgressHooks& hooks, int64_t limit_ns)
      : all_(all), rules_(rules), hooks_(hooks), limit_ns_(limit_ns), observes_(hooks.observes_waits()) {}

  int to_end() {
    while (go_on()) observes_ ? wait_observed() : wait();
    for (const CollectiveTask& steps : all_)
      if (steps.result() != 0) return steps.result();
    return 0;
  }

 private:
  /// Continues all tasks that can continue. Returns false if all are done.
  bool go_on() {
    if (const Cause cause = hooks_.ended(); cause) {
      for (CollectiveTask& steps : all_)
        if (!steps.is_done()) steps.end(cause.error);
      return false;
    }
    bool more = false;
    for (CollectiveTask& steps : all_)
      if (!steps.is_done() && !steps.go_on()) more = true;
    return more;
  }

  bool may_go_on() const {
    for (const CollectiveTask& steps : all_)
      if (!steps.is_done() && steps.waits_for().is_over()) return true;
    return false;
  }
  /// Returns whether a task waits for RDMA, whose completions arrive only while a thread polls.
  bool waits_at_rdma_port() const {
    for (const CollectiveTask& steps : all_)
      if (!steps.is_done() && steps.waits_for().sleepers == nullptr) return true;
    return false;
  }
  bool look_for_a_while() const {
    if (waits_at_rdma_port()) {
      for (uint32_t i = 0; i < kWireLooks; ++i) {
        if (may_go_on()) return true;
        hooks_.look();
      }
      return may_go_on();
    }
    for (uint32_t i = 0; i < looks(rules_); ++i) {
      if (may_go_on()) return true;
      progress::relax();
    }
    return false;
  }
  const Wait& first_wait() const {
    return std::find_if(all_.begin(), all_.end(), [](const CollectiveTask& steps) { return !steps.is_done(); })
        ->waits_for();
  }

  void wait_observed() {
    const Wait waited = first_wait();
    const int64_t began = base::now_ns();
    wait();
    hooks_.on_waited(waited, began, base::now_ns());
  }
  void wait() {
    if (look_for_a_while()) return;
    const int64_t began = base::now_ns();
    const int64_t asked = wait_from(began);
    if (asked != began) hooks_.note_long_wait_for(kNoRank);
  }
  /// Returns the time of the last call of on_long_wait(), or `began`.
  int64_t wait_from(int64_t began) {
    int64_t asked = began;
    for (int turn = 0;; ++turn) {
      hooks_.look();
      if (may_go_on() || hooks_.ended()) return asked;
      const int64_t now = base::now_ns();
      if (now - began >= limit_ns_) {
        hooks_.on_timeout(first_wait());
        return asked;
      }
      if (now - asked >= kLongWaitNs) {
        asked = now;
        hooks_.note_long_wait_for(first_wait().rank);
        hooks_.on_long_wait(first_wait(), now - began >= limit_ns_ / 2);
      }
      if (!is_early(rules_, now - began)) {
        sleep_until(progress::Deadline::in_ns(limit_ns_, began));
        continue;
      }
      if (rules_.shares_cores || turn % kTurnsBetweenYields == kTurnsBetweenYields - 1) progress::yield();
      if (!rules_.shares_cores && look_for_a_while()) return asked;
    }
  }
  void sleep_until(progress::Deadline deadline) {
    progress::WordSleep sleep;
    for (const CollectiveTask& steps : all_)
      if (!steps.is_done()) sleep.add(steps.waits_for());
    sleep_at(sleep, rules_, hooks_, deadline);
  }

  const std::span<CollectiveTask> all_;
  const WaitRules& rules_;
  ProgressHooks& hooks_;
  const int64_t limit_ns_;
  const bool observes_;
};

}  // namespace

void ProgressHooks::sleep(int64_t limit_ns) { progress::sleep_for(std::min(limit_ns, progress::kWordNapNs)); }

void wait_a_turn(std::span<const Wait> waits, const WaitRules& rules, ProgressHooks& hooks, int turn, int64_t began,
                 int64_t limit_ns) {
  const int64_t now = base::now_ns();
  const bool early = is_early(rules, now - began);
  if (early && rules.shares_cores && turn > 0) {
    progress::yield();
  } else if (early || turn == 0) {
    for (uint32_t i = 0; i < looks(rules); ++i) {
      if (std::any_of(waits.begin(), waits.end(), [](const Wait& wait) { return wait.is_over(); })) return;
      progress::relax();
    }
  } else {
    progress::WordSleep sleep;
    for (const Wait& wait : waits) sleep.add(wait);
    sleep_at(sleep, rules, hooks, progress::Deadline::in_ns(limit_ns, now));
  }
}

int run_tasks(std::span<CollectiveTask> all, const WaitRules& rules, ProgressHooks& hooks, int64_t limit_ns) {
  return Run(all, rules, hooks, limit_ns).to_end();
}

}  // namespace nupa::ccl
