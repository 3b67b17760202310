// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <mutex>

#include "progress/deadline.h"
#include <nupa/export.h>

namespace nupa::progress {

/// A condition variable with deadlines. Its calls are not inline, so it is not for the data path. Any thread.
class NUPA_EXPORT Condition {
 public:
  Condition();
  ~Condition();
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;

  template <class Test>
  void wait(std::unique_lock<std::mutex>& lock, Test test) {
    while (!test()) sleep(lock);
  }
  /// False: the deadline passed first.
  template <class Test>
  bool wait(std::unique_lock<std::mutex>& lock, Test test, Deadline deadline) {
    while (!test())
      if (!sleep_until(lock, deadline)) return test();
    return true;
  }
  void notify_all();
  void notify_one();
  /// For a forked child: the parent's threads may sleep on it. Async-signal-safe.
  void renew_in_child();

 private:
  void sleep(std::unique_lock<std::mutex>& lock);
  /// False: the deadline has passed.
  bool sleep_until(std::unique_lock<std::mutex>& lock, Deadline deadline);

  std::condition_variable changed_;
};

}  // namespace nupa::progress
