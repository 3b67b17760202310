// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "progress/cpu.h"
#include "progress/deadline.h"
#include <nupa/export.h>

namespace nupa::progress {

/// How long each kind of waiting lasts before the next kind.
struct WaitPolicy {
  uint32_t spins;    ///< pauses before the first yield
  int64_t yield_ns;  ///< time of yields before the first nap; INT64_MAX: never naps, and never reads the clock
  int64_t nap_ns;    ///< length of a nap
};
/// For a lock that a thread of this process holds for microseconds. 64 pauses are about a microsecond: a few transfers
/// of a cache line. After them each turn yields, because the holder may have been preempted on this core.
inline constexpr WaitPolicy kLockPolicy{64, INT64_MAX, 0};
/// For a holder that may have been preempted for long.
inline constexpr WaitPolicy kHolderPolicy{64, 200'000, 100'000};
/// For another process, which may be stopped.
inline constexpr WaitPolicy kPeerPolicy{64, 200'000, 1'000'000};

/// One wait of one thread, on its stack. turn() does the next step: a pause, a yield or a nap.
class Waiter {
 public:
  explicit constexpr Waiter(const WaitPolicy& policy) : policy_(policy) {}

  void turn() {
    if (turns_ < policy_.spins) {
      ++turns_;
      relax();
    } else {
      give_way();
    }
  }
  /// There was progress: the next turns spin again.
  void reset() {
    turns_ = 0;
    yields_since_ns_ = 0;
  }

 private:
  NUPA_EXPORT void give_way();

  const WaitPolicy& policy_;
  uint32_t turns_ = 0;
  int64_t yields_since_ns_ = 0;  ///< time of the first yield; 0: none yet
};

/// Takes turns until `done()`. False: the deadline passed first. `done` is called at each turn, and once after the
/// deadline.
template <class Done>
bool wait_for(Done&& done, const WaitPolicy& policy, Deadline deadline) {
  for (Waiter waiter(policy); !done(); waiter.turn())
    if (deadline.passed()) return done();
  return true;
}

/// Yields the core to a thread that wants it, if there is one (bench/machine_limits: 0.3 to 0.6 us if there is none).
NUPA_EXPORT void yield();
/// Sleeps; signals do not end it. For control paths: not while a lock is held, and not in a handler of a loop.
NUPA_EXPORT void sleep_for(int64_t ns);
/// Sleeps until the process ends.
[[noreturn]] NUPA_EXPORT void sleep_for_ever();

}  // namespace nupa::progress
