#pragma once
#include <atomic>
#include <cstdint>

namespace nupa::roce {

/// The point in time (CLOCK_MONOTONIC ns) at which a channel wants to be called; INT64_MAX: never. Written by the
/// thread that holds the channel, which expects() it after that; read by any thread.
class Deadline {
 public:
  int64_t at() const { return at_.load(std::memory_order_seq_cst); }
  /// Sequentially consistent, with Schedule::expect() behind it: either the thread that looks at all deadlines sees
  /// this one, or expect() sees that the earliest deadline is being searched for again.
  void set(int64_t deadline) { at_.store(deadline, std::memory_order_seq_cst); }

 private:
  std::atomic<int64_t> at_{INT64_MAX};
};

/// The earliest deadline of some channels, or an earlier time: a channel that puts its deadline off does not look here.
/// Any thread.
class Earliest {
 public:
  int64_t at() const { return at_.load(std::memory_order_seq_cst); }
  /// After Deadline::set(), and before Schedule::expect() of the same.
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

/// When the port is wanted: the earliest deadline of its channels, and until when its thread sleeps. Any thread, except
/// where said.
class Schedule {
 public:
  int64_t earliest() const { return earliest_.load(std::memory_order_relaxed); }

  /// True: the port's thread would sleep for too long, and the caller has to wake it.
  bool expect(int64_t deadline) {
    int64_t seen = earliest_.load(std::memory_order_seq_cst);
    while (deadline < seen && !earliest_.compare_exchange_weak(seen, deadline, std::memory_order_seq_cst)) {
    }
    return deadline < seen && deadline < sleeps_until_.load(std::memory_order_seq_cst);
  }
  /// Before all deadlines are looked at, of which the earliest is expected after that.
  void forget() { earliest_.store(INT64_MAX, std::memory_order_seq_cst); }

  /// The port's thread is about to sleep. Returns the earliest deadline, at which it has to wake up: what is expected
  /// earlier after this has it woken.
  int64_t fall_asleep() {
    sleeps_until_.store(INT64_MAX, std::memory_order_seq_cst);
    const int64_t earliest = earliest_.load(std::memory_order_seq_cst);
    sleep_until(earliest);
    return earliest;
  }
  /// The port's thread: it will wake up by itself then.
  void sleep_until(int64_t time) { sleeps_until_.store(time, std::memory_order_seq_cst); }
  void wake_up() { sleeps_until_.store(0, std::memory_order_seq_cst); }

 private:
  std::atomic<int64_t> earliest_{INT64_MAX};
  std::atomic<int64_t> sleeps_until_{0};  ///< 0: it is awake
};

}  // namespace nupa::roce
