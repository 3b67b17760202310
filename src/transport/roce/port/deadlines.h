// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

namespace nupa::roce {

/// The point in time (CLOCK_MONOTONIC ns) at which a channel wants to be called; INT64_MAX: never. Written by the
/// thread that holds the channel, which expects() it after that; read by any thread.
class Deadline {
 public:
  int64_t at() const { return at_.load(std::memory_order_seq_cst); }
  /// Sequentially consistent, with progress::Schedule::expect() behind it: either the thread that looks at all
  /// deadlines sees this one, or expect() sees that the earliest deadline is being searched for again.
  void set(int64_t deadline) { at_.store(deadline, std::memory_order_seq_cst); }

 private:
  std::atomic<int64_t> at_{INT64_MAX};
};

/// The earliest deadline of some channels, or an earlier time: a channel that puts its deadline off does not look here.
/// Any thread.
class Earliest {
 public:
  int64_t at() const { return at_.load(std::memory_order_seq_cst); }
  /// After Deadline::set(), and before progress::Schedule::expect() of the same.
  void expect(int64_t deadline) {
    int64_t seen = at_.load(std::memory_order_seq_cst);
    while (deadline < seen && !at_.compare_exchange_weak(seen, deadline, std::memory_order_seq_cst)) {
    }
  }
  /// Before the deadlines are looked at, of which the earliest is expected after that.
  void forget() { at_.store(INT64_MAX, std::memory_order_seq_cst); }

 private:
  std::atomic<int64_t> at_{INT64_MAX};
};

}  // namespace nupa::roce
