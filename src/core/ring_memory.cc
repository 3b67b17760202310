// SPDX-License-Identifier: Apache-2.0
#include "core/ring_memory.h"

namespace nupa::core {

namespace {

/// Memory that was given back waits until there is one block for each kQpsABlock queue pairs, or this many bytes.
constexpr size_t kQpsABlock = 64;
constexpr uint64_t kMostWaitingBytes = 16 << 20;

}  // namespace

Result<shm::Segment::Block> RingMemory::allocate(uint64_t bytes) {
  auto block = node_.segment().allocate(bytes);
  if (block) return block;
  free_waiting();
  return node_.segment().allocate(bytes);
}

void RingMemory::give_back(const shm::Segment::Block& block) {
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(block);
    waiting_bytes_ += block.size;
    if (waiting_.size() <= qps_.count() / kQpsABlock && waiting_bytes_ <= kMostWaitingBytes) return;
  }
  free_waiting();
}

void RingMemory::free_waiting() {
  std::vector<shm::Segment::Block> blocks;
  {
    std::lock_guard lock(mutex_);
    blocks.swap(waiting_);
    waiting_bytes_ = 0;
  }
  if (blocks.empty()) return;
  const bool unused = quiesce(node_);
  for (const shm::Segment::Block& block : blocks) node_.segment().release(block, unused);
}

}  // namespace nupa::core
