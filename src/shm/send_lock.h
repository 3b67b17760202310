// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

#include "base/fence.h"
#include "progress/waiter.h"

namespace nupa::shm {

/// The lock of a queue pair's send side: a number that is odd while the lock is held. It lies in shared memory because
/// peers watch it, not because they take it: while it is odd, its owner may access a peer's objects or memory. A peer
/// that has revoked something waits until each such number was even or has changed (docs/design/shm.md).
///
/// Memory order, on any processor: unlock() releases all accesses of the holder, and the next try_lock() and
/// await_holder() acquire the number. Store and load: a holder stores the number and then looks at what may be revoked
/// (a key, a state, a stamp), and the peer stores the revocation and then looks at the number. Both sides have a full
/// barrier between the two: fence_after_update() in try_lock(), and fence_after_revoking(). So the holder sees the
/// revocation, or the peer waits for the holder.
class SendLock {
 public:
  explicit SendLock(std::atomic<uint32_t>& word) : word_(word) {}

  bool try_lock() {
    uint32_t seen = word_.load(std::memory_order_relaxed);
    if ((seen & 1) != 0 || !word_.compare_exchange_strong(seen, seen + 1, std::memory_order_seq_cst)) return false;
    // Pairs with fence_after_revoking(): a holder that await_holder() does not see will see the revocation.
    base::fence_after_update();
    return true;
  }
  void lock() {
    if (__builtin_expect(try_lock(), 1)) return;
    progress::Waiter waiter(progress::kLockPolicy);
    while (!try_lock()) waiter.turn();
  }
  void unlock() { word_.store(word_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

  /// Call it between a revocation and await_holder() of each lock whose holder may use the revoked object.
  static void fence_after_revoking() { std::atomic_thread_fence(std::memory_order_seq_cst); }
  /// Waits until the current holder of the lock `word` has released it. Calls `goes_on` in each turn. False: `goes_on`
  /// returned false.
  template <class GoesOn>
  static bool await_holder(const std::atomic<uint32_t>& word, GoesOn goes_on) {
    const uint32_t seen = word.load(std::memory_order_seq_cst);
    if ((seen & 1) == 0) return true;
    progress::Waiter waiter(progress::kLockPolicy);
    while (word.load(std::memory_order_acquire) == seen) {
      if (!goes_on()) return false;
      waiter.turn();
    }
    return true;
  }

 private:
  std::atomic<uint32_t>& word_;
};

}  // namespace nupa::shm
