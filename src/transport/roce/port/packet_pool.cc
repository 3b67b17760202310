// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/packet_pool.h"

namespace nupa::roce {

PacketPool::PacketPool(uint32_t packets)
    : memory_(std::make_unique_for_overwrite<std::byte[]>(size_t{packets} * kMaxMtu)) {
  free_.reserve(packets);
  for (uint32_t i = 0; i < packets; ++i) free_.push_back(memory_.get() + size_t{i} * kMaxMtu);
}

std::byte* PacketPool::take() {
  std::lock_guard lock(mutex_);
  if (free_.empty()) return nullptr;
  std::byte* buffer = free_.back();
  free_.pop_back();
  return buffer;
}

void PacketPool::give_back(std::byte* buffer) {
  std::lock_guard lock(mutex_);
  free_.push_back(buffer);
}

uint32_t PacketPool::free() const {
  std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(free_.size());
}

}  // namespace nupa::roce
