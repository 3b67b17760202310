#pragma once
#include <cstdint>
#include <limits>
#include <mutex>
#include <new>
#include <vector>

namespace nupa::core {

/// Hands out the numbers [first, limit): those that were never used, then the one that has been free longest, since a
/// number that was just given back may still be in somebody's packet. Each call costs the same, however many numbers
/// are taken, and memory grows with the numbers that were used. Any thread.
class IndexPool {
 public:
  IndexPool(uint32_t first, uint32_t limit) : first_(first), next_(first), limit_(limit) {}

  /// -1 when all are taken, or without memory.
  int64_t take() {
    std::lock_guard lock(mutex_);
    if (next_ < limit_) return take_new();
    if (oldest_ == kNone) return -1;
    const uint32_t index = oldest_;
    oldest_ = after_[index - first_];
    return index;
  }
  void give_back(uint32_t index) {
    std::lock_guard lock(mutex_);
    after_[index - first_] = kNone;
    (oldest_ == kNone ? oldest_ : after_[newest_ - first_]) = index;
    newest_ = index;
  }
  /// There are more numbers from now on.
  void extend(uint32_t limit) {
    std::lock_guard lock(mutex_);
    limit_ = limit;
  }

 private:
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

  int64_t take_new() try {
    after_.push_back(kNone);  // so that give_back() needs no memory
    return next_++;
  } catch (const std::bad_alloc&) {
    return -1;
  }

  std::mutex mutex_;
  const uint32_t first_;
  uint32_t next_;  ///< was never used, as those behind it
  uint32_t limit_;
  std::vector<uint32_t> after_;  ///< by number: which free one was given back next
  uint32_t oldest_ = kNone;      ///< of the free ones
  uint32_t newest_ = kNone;
};

}  // namespace nupa::core
