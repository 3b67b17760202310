// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/roce/protocol/reorder.h"

namespace nupa::roce {

/// Buffers that the queue pairs of a port share, also for packets that wait in inboxes. The memory is allocated by the
/// constructor. Any thread.
class PacketPool final : public PacketMemory {
 public:
  explicit PacketPool(uint32_t packets);
  std::byte* take() override;
  void give_back(std::byte* buffer) override;
  uint32_t free() const;

 private:
  mutable std::mutex mutex_;
  std::unique_ptr<std::byte[]> memory_;
  std::vector<std::byte*> free_;
};

}  // namespace nupa::roce
