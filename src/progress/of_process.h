// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>
#include <memory>
#include <mutex>
#include <new>

#include "progress/lifecycle.h"

namespace nupa::progress {

// State that all of a process shares, and what a forked child does with it: another thread of its parent may have been
// in the middle of a change.

/// A mutex that fork() holds, so that a child finds what it guards whole. For work of microseconds: nothing else is
/// locked while it is held. It lives as long as the process; made at namespace scope, with new.
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

/// A value that a child has anew, as its constructor makes it, since the parent may hold its lock for long. The
/// parent's stays in memory as it is. It lives as long as the process; made at namespace scope, with new. T() allocates
/// nothing.
template <class T>
class RenewedInChildren final : private ForkParticipant {
 public:
  RenewedInChildren() : now_(new (place_) T()) { join_forks(ForkStage::kDescriptors, this); }
  T& get() { return *now_; }

 private:
  void before_fork() override {}
  void in_parent() override {}
  bool in_child() override {
    std::memcpy(former_, place_, sizeof place_);  // what it refers to is not lost
    now_ = new (place_) T();
    return true;
  }
  alignas(T) std::byte place_[sizeof(T)];
  alignas(T) std::byte former_[sizeof(T)]{};
  T* now_;
};

/// Shared by this process's threads. A forked child never destroys it: the threads, descriptors and names of the object
/// are its parent's.
template <class T>
std::shared_ptr<T> shared_in_process(T* made) {
  return std::shared_ptr<T>(made, [own = OfThisProcess()](T* object) {
    if (own.holds()) delete object;
  });
}

}  // namespace nupa::progress
