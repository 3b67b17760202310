// SPDX-License-Identifier: Apache-2.0
#include "rsockets/waiter.h"

#include <algorithm>
#include <mutex>

#include "progress/cpu.h"
#include "rsockets/settings.h"

namespace nupa::rsockets {

void Observers::add(Observer* observer) {
  std::lock_guard lock(lock_);
  list_.push_back(observer);
  count_.store(static_cast<uint32_t>(list_.size()), std::memory_order_seq_cst);
  base::fence_after_update();
}

void Observers::remove(Observer* observer) {
  std::lock_guard lock(lock_);
  const auto it = std::find(list_.begin(), list_.end(), observer);
  if (it != list_.end()) list_.erase(it);
  count_.store(static_cast<uint32_t>(list_.size()), std::memory_order_seq_cst);
}

void Observers::notify_observers(const Observer* except) {
  std::lock_guard lock(lock_);
  for (Observer* observer : list_) {
    if (observer != except) observer->changed();
  }
}

Spin::Spin() : until_(Deadline::in_ns(settings().polling_us * progress::kNsPerUs)) {}

bool Spin::again() {
  if (until_.passed()) return false;
  progress::relax();
  return true;
}

}  // namespace nupa::rsockets
