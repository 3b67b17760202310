// SPDX-License-Identifier: Apache-2.0
#include "progress/condition.h"

#include <chrono>
#include <new>

namespace nupa::progress {

Condition::Condition() = default;
Condition::~Condition() = default;

void Condition::notify_all() { changed_.notify_all(); }
void Condition::notify_one() { changed_.notify_one(); }
void Condition::renew_in_child() { new (&changed_) std::condition_variable; }

void Condition::sleep(std::unique_lock<std::mutex>& lock) { changed_.wait(lock); }

bool Condition::sleep_until(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  if (deadline.is_never()) {
    changed_.wait(lock);
    return true;
  }
  // steady_clock is CLOCK_MONOTONIC.
  const std::chrono::steady_clock::time_point end{std::chrono::nanoseconds(deadline.at_ns())};
  return changed_.wait_until(lock, end) == std::cv_status::no_timeout;
}

}  // namespace nupa::progress
