#pragma once
#include <immintrin.h>
#include <sched.h>

#include <atomic>
#include <cstdint>

namespace nupa::base {

/// The wait that everything shares: spin briefly, then give the core away on every further turn, so that it
/// behaves with more runnable threads than cores. One object a wait; not shared between threads.
class Backoff {
 public:
  /// Spins before the first yield: about a microsecond, a few cache-line transfers.
  static constexpr uint32_t kSpins = 64;

  void pause() {
    if (turns_ < kSpins) {
      ++turns_;
      _mm_pause();
    } else {
      sched_yield();
    }
  }

 private:
  uint32_t turns_ = 0;
};

/// A lock for a few instructions' work that threads of one process contend for. Lockable for std::lock_guard.
class SpinLock {
 public:
  void lock() {
    while (__builtin_expect(held_.exchange(true, std::memory_order_acquire), 0)) {
      Backoff backoff;
      while (held_.load(std::memory_order_relaxed)) backoff.pause();
    }
  }
  bool try_lock() { return !held_.exchange(true, std::memory_order_acquire); }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

}  // namespace nupa::base
