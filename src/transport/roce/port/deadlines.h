// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

namespace nupa::roce {

/// The time (CLOCK_MONOTONIC ns) at which a queue pair has to be called; INT64_MAX: never. The thread that holds the
/// queue pair writes it, and calls expect() after that. Any thread reads it.
class Deadline {
 public:
  int64_t at() const { return at_.load(std::memory_order_seq_cst); }
  /// Sequentially consistent, with progress::Schedule::expect() behind it: either the thread that looks at all
  /// deadlines sees this one, or expect() sees that the earliest deadline is being searched for again.
  void set(int64_t deadline) { at_.store(deadline, std::memory_order_seq_cst); }

 private:
  std::atomic<int64_t> at_{INT64_MAX};
};

/// The earliest deadline of some queue pairs, or an earlier time: a queue pair that moves its deadline to a later time
/// does not change this. Any thread.
class Earliest {
 public:
  int64_t at() const { return at_.load(std::memory_order_seq_cst); }
  /// Call after Deadline::set(), and before progress::Schedule::expect() with the same deadline.
  void expect(int64_t deadline) {
    int64_t seen = at_.load(std::memory_order_seq_cst);
    while (deadline < seen && !at_.compare_exchange_weak(seen, deadline, std::memory_order_seq_cst)) {
    }
  }
  /// Call before looking at the deadlines; expect() sets the earliest of them after that.
  void forget() { at_.store(INT64_MAX, std::memory_order_seq_cst); }

 private:
  std::atomic<int64_t> at_{INT64_MAX};
};

}  // namespace nupa::roce
