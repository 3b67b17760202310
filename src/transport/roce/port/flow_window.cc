// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/flow_window.h"

#include <algorithm>

namespace nupa::roce {

uint64_t FlowWindow::room(uint64_t used) const {
  const uint64_t size = this->size();
  const uint64_t left = size - std::min(size, used);
  constexpr uint64_t kTurnsAtLeast = 4;
  return left >= std::min(quantum_bytes(), std::max<uint64_t>(size / kTurnsAtLeast, kMaxPacketBytes)) ? left : 0;
}

uint64_t FlowWindow::take(uint64_t wanted, uint64_t least) {
  uint64_t used = used_.load(std::memory_order_relaxed);
  while (true) {
    uint64_t taken = std::min(room(used), wanted);
    if (used == 0) taken = std::max(taken, least);
    if (taken == 0 || used_.compare_exchange_weak(used, used + taken, std::memory_order_relaxed)) return taken;
  }
}

void FlowWindow::wait(QpReceiver& queue_pair) {
  std::lock_guard lock(mutex_);
  queue_.push_back(&queue_pair);
  waiting_.store(static_cast<uint32_t>(queue_.size()), std::memory_order_relaxed);
}

QpReceiver* FlowWindow::first() {
  std::lock_guard lock(mutex_);
  return queue_.empty() ? nullptr : queue_.front();
}

bool FlowWindow::leave_head(QpReceiver& queue_pair) {
  std::lock_guard lock(mutex_);
  if (queue_.empty() || queue_.front() != &queue_pair) return false;
  queue_.pop_front();
  waiting_.store(static_cast<uint32_t>(queue_.size()), std::memory_order_relaxed);
  return true;
}

void FlowWindow::pass_over(QpReceiver& queue_pair) {
  std::lock_guard lock(mutex_);
  if (queue_.empty() || queue_.front() != &queue_pair) return;
  queue_.pop_front();
  queue_.push_back(&queue_pair);
}

void FlowWindow::forget(QpReceiver& queue_pair) {
  std::lock_guard lock(mutex_);
  queue_.erase(std::remove(queue_.begin(), queue_.end(), &queue_pair), queue_.end());
  waiting_.store(static_cast<uint32_t>(queue_.size()), std::memory_order_relaxed);
}

}  // namespace nupa::roce
