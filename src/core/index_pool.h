// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <limits>
#include <mutex>
#include <new>
#include <vector>

namespace nupa::core {

/// Hands out the numbers [first, limit): first the numbers that were never used, then the one that has been free
/// longest. A packet may still carry a number that was just given back. The cost of a call does not depend on how many
/// numbers are taken. Memory grows with the numbers that were used. Any thread.
class IndexPool {
 public:
  IndexPool(uint32_t first, uint32_t limit) : first_(first), next_(first), limit_(limit) {}

  /// Returns -1 if all numbers are taken or there is no memory.
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
  /// Adds numbers up to the new limit.
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
  uint32_t next_;  ///< this number and all above it were never used
  uint32_t limit_;
  std::vector<uint32_t> after_;  ///< by number: the free number that was given back after it
  uint32_t oldest_ = kNone;      ///< the number that has been free longest
  uint32_t newest_ = kNone;
};

}  // namespace nupa::core
