// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

namespace nupa::core {

/// The stamp of a completion queue's next entry, for threads that poll an empty queue without its lock.
///
/// Memory order, on any processor: the stores of `stamp_` and `turn_` release the odd version, and the loads acquire
/// it. So a reader that sees a new place or turn also sees that the version has changed, because it reads the version
/// again after these loads. The even version releases both, and the reader's first load acquires it. A reader that sees
/// only old values looks at the stamp of the entry before, which has come: such a reader does not report an empty
/// queue, or does so before that entry is visible to it.
class NextStamp {
 public:
  /// Called with the lock held. The entry is there when `stamp` has reached `turn`.
  void look_at(const std::atomic<uint64_t>& stamp, uint64_t turn) {
    const uint32_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    stamp_.store(&stamp, std::memory_order_release);
    turn_.store(turn, std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  /// Called without the lock. False: the caller has to look at the queue itself.
  bool surely_empty() const {
    const uint32_t version = version_.load(std::memory_order_acquire);
    const std::atomic<uint64_t>* stamp = stamp_.load(std::memory_order_acquire);
    const uint64_t turn = turn_.load(std::memory_order_acquire);
    // A later turn means that another thread has taken the entry and has not called look_at() yet: there may be an
    // entry behind it. After a resize `stamp` may point to the old ring, whose memory stays mapped; the version shows
    // the change.
    return stamp->load(std::memory_order_acquire) < turn && (version & 1) == 0 &&
           version_.load(std::memory_order_relaxed) == version;
  }

 private:
  std::atomic<uint32_t> version_{0};  ///< odd while the other members change
  std::atomic<const std::atomic<uint64_t>*> stamp_{nullptr};
  std::atomic<uint64_t> turn_{0};
};

}  // namespace nupa::core
