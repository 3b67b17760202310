// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "progress/cpu.h"
#include "progress/deadline.h"
#include <nupa/export.h>

namespace nupa::progress {

/// How long each kind of waiting lasts before the next one.
struct WaitPolicy {
  uint32_t spins;    ///< pauses before the first yield
  int64_t yield_ns;  ///< yields for so long before the first nap; INT64_MAX: never naps, and never reads the clock
  int64_t nap_ns;    ///< length of a nap
};
/// A holder in this process, who has it for microseconds. 64 pauses are about a microsecond: a few transfers of a cache
/// line. After them each turn gives the core away, since the holder may have been preempted on it.
inline constexpr WaitPolicy kLockPolicy{64, INT64_MAX, 0};
/// A holder that may have been preempted for long.
inline constexpr WaitPolicy kHolderPolicy{64, 200'000, 100'000};
/// Another process, which may be stopped.
inline constexpr WaitPolicy kPeerPolicy{64, 200'000, 1'000'000};

/// One wait of one thread, on its stack. turn() does the next thing: a pause, a yield or a nap.
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
  /// Something moved: the next turns spin again.
  void reset() {
    turns_ = 0;
    yields_since_ns_ = 0;
  }

 private:
  NUPA_EXPORT void give_way();

  const WaitPolicy& policy_;
  uint32_t turns_ = 0;
  int64_t yields_since_ns_ = 0;  ///< the clock at the first yield; 0: none yet
};

/// Turns until `done()`. False: the deadline passed first. `done` is called at each turn, and once after the deadline.
template <class Done>
bool wait_for(Done&& done, const WaitPolicy& policy, Deadline deadline) {
  for (Waiter waiter(policy); !done(); waiter.turn())
    if (deadline.passed()) return done();
  return true;
}

/// Gives the core to a thread that wants it, if there is one (bench/machine_limits: 0.3 to 0.6 us if there is none).
NUPA_EXPORT void yield();
/// Sleeps; signals do not end it. For control paths: no lock is held, and it is not in a handler of a loop.
NUPA_EXPORT void sleep_for(int64_t ns);
/// The end of the process ends it.
[[noreturn]] NUPA_EXPORT void sleep_for_ever();

}  // namespace nupa::progress
