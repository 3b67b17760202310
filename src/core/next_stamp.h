#pragma once
#include <atomic>
#include <cstdint>

namespace nupa::core {

/// Where the next entry of a completion queue will be, for threads that poll an empty queue without its lock.
class NextStamp {
 public:
  /// With the lock. The entry is there when `stamp` has come to `turn`.
  void look_at(const std::atomic<uint64_t>& stamp, uint64_t turn) {
    const uint32_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    stamp_.store(&stamp, std::memory_order_release);
    turn_.store(turn, std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  /// Without the lock. False: look properly.
  bool surely_empty() const {
    const uint32_t version = version_.load(std::memory_order_acquire);
    const std::atomic<uint64_t>* stamp = stamp_.load(std::memory_order_acquire);
    const uint64_t turn = turn_.load(std::memory_order_acquire);
    // A later turn says that another thread has taken the entry and has not come to look_at() yet: behind it there may
    // be one. After a resize this may be the old ring's memory: it stays mapped, and the version tells.
    return stamp->load(std::memory_order_acquire) < turn && (version & 1) == 0 &&
           version_.load(std::memory_order_relaxed) == version;
  }

 private:
  std::atomic<uint32_t> version_{0};  ///< odd while the others change
  std::atomic<const std::atomic<uint64_t>*> stamp_{nullptr};
  std::atomic<uint64_t> turn_{0};
};

}  // namespace nupa::core
