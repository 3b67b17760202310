#pragma once
#include <atomic>
#include <cstdint>
#include <span>

#include "ccl/error/cause.h"
#include "ccl/coroutine/steps.h"
#include "progress/words.h"

namespace nupa::ccl {

/// What goes on beside an operation that waits. Called by the thread that waits.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  /// Why everything ends; called at every few looks.
  virtual Cause ended() const = 0;
  /// Takes what wires have brought.
  virtual void look() {}
  /// Sleeps until wires bring something, `limit_ns` at most.
  virtual void sleep(int64_t limit_ns);
  /// Somebody has been waited for for a while, again and again: time to ask whether that rank is alive. `is_late`: half
  /// the time limit has passed, and on_timeout() may soon have to name the rank that holds up all others.
  virtual void on_long_wait(const Wait& /*wait*/, bool /*is_late*/) {}
  /// Meanwhile this is the one that is waited for; kNoRank: nobody is any more.
  virtual void note_long_wait_for([[maybe_unused]] uint32_t rank) {}
  /// Whether on_waited() is to be told of waits, while operations run.
  virtual bool observes_waits() const { return false; }
  /// Somebody was waited for for so long (CLOCK_MONOTONIC).
  virtual void on_waited(const Wait& /*wait*/, int64_t /*began_ns*/, int64_t /*ended_ns*/) {}
  /// The time is up. Returns why everything ends from now on.
  virtual Cause on_timeout(const Wait& wait) = 0;
};

/// How a rank waits: for a while it looks again and again, then it sleeps.
struct WaitRules {
  int64_t spin_ns = 0;
  /// There are more ranks than cores: a rank that waits lets others run between looks, and a rank that counts a word up
  /// looks for sleepers behind a fence. Else the kernel puts a fence into all that are awake when a rank falls asleep.
  bool shares_cores = true;

  progress::Fences fences() const {
    return shares_cores ? progress::Fences::kByWriters : progress::Fences::kBySleepers;
  }
};

/// Runs operations of one rank, side by side, to their ends in this thread. They end as they do, by the surroundings'
/// cause, or after `limit_ns`. Returns the first one's error, or 0.
int run_steps(std::span<Steps> all, const WaitRules& rules, Surroundings& around, int64_t limit_ns);
inline int run_steps(Steps& steps, const WaitRules& rules, Surroundings& around, int64_t limit_ns) {
  return run_steps(std::span(&steps, 1), rules, around, limit_ns);
}

/// One turn of waiting for any of these, for whoever does not run steps: `turn` counts them, `began` is when the first
/// one was (CLOCK_MONOTONIC ns). Spins, yields or sleeps, `limit_ns` at most.
void wait_a_turn(std::span<const Wait> waits, const WaitRules& rules, Surroundings& around, int turn, int64_t began,
                 int64_t limit_ns);

}  // namespace nupa::ccl
