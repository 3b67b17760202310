// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::progress {

/// Finds out whether others want this thread's core, by the cost of its yields. An object belongs to one thread.
class Neighbours {
 public:
  /// sched_yield() where nobody else wants the core takes less (bench/machine_limits: 0.3 to 0.6 us); another thread
  /// that runs meanwhile costs two switches at least.
  static constexpr int64_t kYieldAloneNs = 1'500;
  /// A yield that took longer met a program that never sleeps. To yield to it costs a slice of the scheduler.
  static constexpr int64_t kAwayNs = 1'000'000;
  /// One long yield may be an interrupt.
  static constexpr uint32_t kSure = 2;
  /// Answers of share_core() until it is asked again whether they still hold.
  static constexpr uint32_t kBelieved = 256;

  /// An empty poll for packets is a system call: so many of them take longer than a round trip between two cores, and a
  /// program that gets its answers in time never yields. Where another thread wants the core and gives it back soon, as
  /// a peer that is pinned to it, each empty poll yields.
  static constexpr uint32_t kPolitePolls = 64;

  /// After so many empty polls for packets in a row: yields where that is of use.
  void polled_in_vain(uint32_t polls) {
    if (wants_yield(polls)) yield();
  }
  bool wants_yield(uint32_t polls) { return share_core() || polls % kPolitePolls == 0; }
  /// Gives the core away and measures.
  void yield();
  /// A yield took so long.
  void yielded(int64_t took_ns) {
    if (took_ns >= kAwayNs) believed_ = 0;
    if (took_ns >= kAwayNs || took_ns < kYieldAloneNs) {
      long_ = 0;
    } else if (++long_ >= kSure) {
      long_ = kSure;
      believed_ = kBelieved;
    }
  }
  /// Somebody wants the core who gives it back soon.
  bool share_core() {
    if (believed_ == 0) return false;
    --believed_;
    return true;
  }

  /// The calling thread's.
  static Neighbours& of_thread();

 private:
  uint32_t long_ = 0;      ///< yields in a row that were, at most kSure
  uint32_t believed_ = 0;  ///< answers left
};

}  // namespace nupa::progress
