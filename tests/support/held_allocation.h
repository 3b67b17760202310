// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A thread that is stopped in the middle of an allocation, with the locks that it holds there. Included by one file of
/// the program, as allocation_steps.h.
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "allocation_steps.h"

namespace nupa::test {

/// Called once in this thread, before its next allocation.
inline thread_local std::function<void()>* before_allocation = nullptr;

inline bool stop_at_the_first() {
  allocation_step = nullptr;
  (*std::exchange(before_allocation, nullptr))();
  return true;
}

/// A thread that makes a call and stops at the call's first allocation, until the object ends. False in stands(): the
/// call has come back without one.
class HeldAllocation {
 public:
  explicit HeldAllocation(const std::function<void()>& call)
      : thread_([this, call] {
          std::function<void()> step = [this] {
            reached_.set_value(true);
            let_go_.get_future().wait();
          };
          before_allocation = &step;
          allocation_step = stop_at_the_first;
          call();
          allocation_step = nullptr;
          if (std::exchange(before_allocation, nullptr) != nullptr) reached_.set_value(false);
        }),
        stands_(reached_.get_future().get()) {}
  ~HeldAllocation() {
    let_go_.set_value();
    thread_.join();
  }
  HeldAllocation(const HeldAllocation&) = delete;
  HeldAllocation& operator=(const HeldAllocation&) = delete;
  bool stands() const { return stands_; }

 private:
  std::promise<bool> reached_;
  std::promise<void> let_go_;
  std::thread thread_;
  bool stands_;
};

}  // namespace nupa::test
