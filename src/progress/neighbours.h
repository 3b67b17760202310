// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::progress {

/// Detects whether other threads want this thread's core, by the cost of its yields. An object belongs to one thread.
class Neighbours {
 public:
  /// Without another thread that wants the core, sched_yield() takes less than this (bench/machine_limits: 0.3 to 0.6
  /// us). If another thread runs meanwhile, it takes two context switches at least.
  static constexpr int64_t kYieldAloneNs = 1'500;
  /// A yield that takes longer than this gave the core to a program that never sleeps. That costs a slice of the
  /// scheduler.
  static constexpr int64_t kAwayNs = 1'000'000;
  /// Long yields in a row before they count, because one may be an interrupt.
  static constexpr uint32_t kSure = 2;
  /// The number of times that share_core() returns true before the next measurement.
  static constexpr uint32_t kBelieved = 256;

  /// An empty poll for packets is a system call. This number of them takes longer than a round trip between two cores,
  /// and a program that gets its answers in time never yields. If another thread wants the core and gives it back soon,
  /// such as a peer pinned to it, each empty poll yields.
  static constexpr uint32_t kPolitePolls = 64;

  /// Call it after `polls` empty polls for packets in a row: yields if that is of use.
  void polled_in_vain(uint32_t polls) {
    if (wants_yield(polls)) yield();
  }
  bool wants_yield(uint32_t polls) { return share_core() || polls % kPolitePolls == 0; }
  /// Yields and measures the time.
  void yield();
  /// Records the time that a yield took.
  void yielded(int64_t took_ns) {
    if (took_ns >= kAwayNs) believed_ = 0;
    if (took_ns >= kAwayNs || took_ns < kYieldAloneNs) {
      long_ = 0;
    } else if (++long_ >= kSure) {
      long_ = kSure;
      believed_ = kBelieved;
    }
  }
  /// True if another thread wants the core and gives it back soon.
  bool share_core() {
    if (believed_ == 0) return false;
    --believed_;
    return true;
  }

  /// The calling thread's object.
  static Neighbours& of_thread();

 private:
  uint32_t long_ = 0;      ///< long yields in a row, at most kSure
  uint32_t believed_ = 0;  ///< times left
};

}  // namespace nupa::progress
