// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

namespace nupa::progress {

/// The times when a packet source needs service: its earliest deadline, and until when the serving thread sleeps. Any
/// thread, unless a comment states otherwise.
///
/// Memory order: a thread that expects something stores the earliest deadline and then looks at the sleep. The serving
/// thread stores the sleep and then looks at the deadline. All four accesses are sequentially consistent, which orders
/// them on any processor: the serving thread sees the deadline, or expect() returns true. earliest() alone orders
/// nothing.
class Schedule {
 public:
  int64_t earliest() const { return earliest_.load(std::memory_order_relaxed); }

  /// True: the serving thread would sleep too long, and the caller has to wake it.
  bool expect(int64_t deadline) {
    int64_t seen = earliest_.load(std::memory_order_seq_cst);
    while (deadline < seen && !earliest_.compare_exchange_weak(seen, deadline, std::memory_order_seq_cst)) {
    }
    return deadline < seen && deadline < sleeps_until_.load(std::memory_order_seq_cst);
  }
  /// Call it before the source goes through all its deadlines and expects the earliest again.
  void forget() { earliest_.store(INT64_MAX, std::memory_order_seq_cst); }

  /// The serving thread is about to sleep. Returns the earliest deadline, at which it has to wake up. A deadline that
  /// is earlier and comes after this call wakes it.
  int64_t fall_asleep() {
    sleeps_until_.store(INT64_MAX, std::memory_order_seq_cst);
    const int64_t earliest = earliest_.load(std::memory_order_seq_cst);
    sleep_until(earliest);
    return earliest;
  }
  /// The serving thread will wake up by itself then.
  void sleep_until(int64_t time) { sleeps_until_.store(time, std::memory_order_seq_cst); }
  void wake_up() { sleeps_until_.store(0, std::memory_order_seq_cst); }

 private:
  std::atomic<int64_t> earliest_{INT64_MAX};
  std::atomic<int64_t> sleeps_until_{0};  ///< 0: it is awake
};

}  // namespace nupa::progress
