#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

namespace nupa::core {

/// Hands out the numbers [first, limit), the one that has been free longest last: a number that was just given back
/// may still be in somebody's packet. Any thread.
class IndexPool {
 public:
  IndexPool(uint32_t first, uint32_t limit) : next_(first), first_(first), limit_(limit), used_(limit, false) {}

  /// -1 when all are taken.
  int64_t take() {
    std::lock_guard lock(mutex_);
    for (uint32_t tried = first_; tried < limit_; ++tried) {
      const uint32_t index = next_;
      next_ = next_ + 1 == limit_ ? first_ : next_ + 1;
      if (!used_[index]) {
        used_[index] = true;
        return index;
      }
    }
    return -1;
  }
  void give_back(uint32_t index) {
    std::lock_guard lock(mutex_);
    used_[index] = false;
  }

 private:
  std::mutex mutex_;
  uint32_t next_;
  uint32_t first_;
  uint32_t limit_;
  std::vector<bool> used_;
};

}  // namespace nupa::core
