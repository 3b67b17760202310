// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/shared_window.h"

#include <algorithm>

namespace nupa::roce {

uint64_t SharedWindow::room(uint64_t used) const {
  const uint64_t size = this->size();
  const uint64_t left = size - std::min(size, used);
  constexpr uint64_t kTurnsAtLeast = 4;
  return left >= std::min(turn_bytes(), std::max<uint64_t>(size / kTurnsAtLeast, kMaxPacketBytes)) ? left : 0;
}

uint64_t SharedWindow::take(uint64_t wanted, uint64_t least) {
  uint64_t used = used_.load(std::memory_order_relaxed);
  while (true) {
    uint64_t taken = std::min(room(used), wanted);
    if (used == 0) taken = std::max(taken, least);
    if (taken == 0 || used_.compare_exchange_weak(used, used + taken, std::memory_order_relaxed)) return taken;
  }
}

void SharedWindow::wait(Channel& channel) {
  std::lock_guard lock(mutex_);
  line_.push_back(&channel);
  waiting_.store(static_cast<uint32_t>(line_.size()), std::memory_order_relaxed);
}

Channel* SharedWindow::first() {
  std::lock_guard lock(mutex_);
  return line_.empty() ? nullptr : line_.front();
}

bool SharedWindow::leave_head(Channel& channel) {
  std::lock_guard lock(mutex_);
  if (line_.empty() || line_.front() != &channel) return false;
  line_.pop_front();
  waiting_.store(static_cast<uint32_t>(line_.size()), std::memory_order_relaxed);
  return true;
}

void SharedWindow::pass_over(Channel& channel) {
  std::lock_guard lock(mutex_);
  if (line_.empty() || line_.front() != &channel) return;
  line_.pop_front();
  line_.push_back(&channel);
}

void SharedWindow::forget(Channel& channel) {
  std::lock_guard lock(mutex_);
  line_.erase(std::remove(line_.begin(), line_.end(), &channel), line_.end());
  waiting_.store(static_cast<uint32_t>(line_.size()), std::memory_order_relaxed);
}

}  // namespace nupa::roce
