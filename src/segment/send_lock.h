#pragma once
#include <atomic>
#include <cstdint>

#include "base/spin.h"

namespace nupa::segment {

/// The lock of a queue pair's send side: a number that is odd while held. It lies in shared memory not because others
/// take it, but because they watch it: while it is odd its owner may be touching a peer's objects or memory. A peer
/// that has revoked something waits until each such number was even or changed (docs/window.md, grace periods).
class SendLock {
 public:
  explicit SendLock(std::atomic<uint32_t>& word) : word_(word) {}

  bool try_lock() {
    uint32_t seen = word_.load(std::memory_order_relaxed);
    // Sequentially consistent: what is revoked before it looks here is seen revoked after this.
    return (seen & 1) == 0 && word_.compare_exchange_strong(seen, seen + 1, std::memory_order_seq_cst);
  }
  void lock() {
    if (__builtin_expect(try_lock(), 1)) return;
    base::Backoff backoff;
    while (!try_lock()) backoff.pause();
  }
  void unlock() { word_.store(word_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

 private:
  std::atomic<uint32_t>& word_;
};

}  // namespace nupa::segment
