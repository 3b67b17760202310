// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>
#include <memory>
#include <mutex>
#include <new>

#include "progress/lifecycle.h"

namespace nupa::progress {

// Process-wide state, and its handling in a forked child: another thread of the parent may have been in the middle of a
// change.

/// A mutex that fork() holds, so that a child finds the data that it guards consistent. For work of microseconds; no
/// other lock is taken while it is held. Never destroyed: made at namespace scope, with new.
class ForkMutex final : private ForkParticipant {
 public:
  ForkMutex() { join_forks(ForkStage::kDescriptors, this); }
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  void before_fork() override { mutex_.lock(); }
  void in_parent() override { mutex_.unlock(); }
  bool in_child() override {
    mutex_.unlock();
    return true;
  }
  std::mutex mutex_;
};

/// A value that is constructed again in a child, because the parent may hold its lock for long. The parent's copy stays
/// in memory as it is. Never destroyed: made at namespace scope, with new. T() must not allocate.
template <class T>
class RenewedInChildren final : private ForkParticipant {
 public:
  RenewedInChildren() : now_(new (place_) T()) { join_forks(ForkStage::kDescriptors, this); }
  T& get() { return *now_; }

 private:
  void before_fork() override {}
  void in_parent() override {}
  bool in_child() override {
    std::memcpy(former_, place_, sizeof place_);  // keeps the objects that it refers to reachable
    now_ = new (place_) T();
    return true;
  }
  alignas(T) std::byte place_[sizeof(T)];
  alignas(T) std::byte former_[sizeof(T)]{};
  T* now_;
};

/// A pointer that this process's threads share. A forked child never destroys the object: its threads, descriptors and
/// names belong to the parent.
template <class T>
std::shared_ptr<T> shared_in_process(T* made) {
  return std::shared_ptr<T>(made, [own = OfThisProcess()](T* object) {
    if (own.holds()) delete object;
  });
}

}  // namespace nupa::progress
