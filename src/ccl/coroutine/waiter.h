// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>
#include <span>

#include "ccl/error/cause.h"
#include "ccl/coroutine/collective_task.h"
#include "progress/words.h"

namespace nupa::ccl {

/// Progress hooks: functions that a thread calls while its operation waits.
class ProgressHooks {
 public:
  virtual ~ProgressHooks() = default;
  /// Returns why all operations have to end, or no cause. It is called often during a wait.
  virtual Cause ended() const = 0;
  /// Takes the RDMA completions that have arrived.
  virtual void look() {}
  /// Sleeps until an RDMA completion arrives, `limit_ns` at most.
  virtual void sleep(int64_t limit_ns);
  /// Called repeatedly during a long wait, to check whether the awaited rank is alive. `is_late`: half of the time
  /// limit has passed, and on_timeout() may soon have to name the rank that blocks all others.
  virtual void on_long_wait(const Wait& /*wait*/, bool /*is_late*/) {}
  /// Records the rank that a long wait is for. kNoRank: the wait is over.
  virtual void note_long_wait_for([[maybe_unused]] uint32_t rank) {}
  /// Returns whether on_waited() has to be called after each wait.
  virtual bool observes_waits() const { return false; }
  /// A wait has ended. Times are CLOCK_MONOTONIC.
  virtual void on_waited(const Wait& /*wait*/, int64_t /*began_ns*/, int64_t /*ended_ns*/) {}
  /// A wait has reached the time limit. Ends all operations and returns why.
  virtual Cause on_timeout(const Wait& wait) = 0;
};

/// How a rank waits: it spins or yields for `spin_ns`, then it sleeps.
struct WaitRules {
  int64_t spin_ns = 0;
  /// True if there are more ranks than cores. Then a waiting rank yields between checks, and a rank that counts a word
  /// up executes a fence before it checks for sleepers. Otherwise a rank that falls asleep has the kernel execute a
  /// fence in all running threads.
  bool shares_cores = true;

  progress::Fences fences() const {
    return shares_cores ? progress::Fences::kByWriters : progress::Fences::kBySleepers;
  }
};

/// Runs tasks of one rank side by side in this thread until all are done. Those that are not done end when the progress
/// hooks return a cause, or when a wait reaches `limit_ns`. Returns 0, or the error of the first task that failed.
int run_tasks(std::span<CollectiveTask> all, const WaitRules& rules, ProgressHooks& hooks, int64_t limit_ns);
inline int run_tasks(CollectiveTask& steps, const WaitRules& rules, ProgressHooks& hooks, int64_t limit_ns) {
  return run_tasks(std::span(&steps, 1), rules, hooks, limit_ns);
}

/// One turn of waiting for any of these words, for callers that do not run tasks. Spins, yields or sleeps, `limit_ns`
/// at most. `turn`: counts the turns of a wait from 0. `began`: start of the first turn (CLOCK_MONOTONIC ns).
void wait_a_turn(std::span<const Wait> waits, const WaitRules& rules, ProgressHooks& hooks, int turn, int64_t began,
                 int64_t limit_ns);

}  // namespace nupa::ccl
