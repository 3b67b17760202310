// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>

#include "progress/waiter.h"

namespace nupa::progress {

/// A lock for a few instructions, for threads of one process. Lockable by std::lock_guard. No system call may be made
/// while it is held. lock() acquires what unlock() released.
class SpinLock {
 public:
  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) [[unlikely]] {
        Waiter waiter(kLockPolicy);
        while (held_.load(std::memory_order_relaxed)) waiter.turn();
      }
  }
  /// In a forked child: true if a thread of the parent held it.
  bool is_held() const { return held_.load(std::memory_order_relaxed); }
  bool try_lock() { return !held_.exchange(true, std::memory_order_acquire); }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

}  // namespace nupa::progress
