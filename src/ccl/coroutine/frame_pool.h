#pragma once
#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

namespace nupa::ccl {

/// Memory of coroutines that come and go: what one leaves, the next one takes. One thread at a time. Outlives what was
/// taken from it.
class FramePool {
 public:
  FramePool() = default;
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;
  ~FramePool() {
    while (free_ != nullptr) ::operator delete(std::exchange(free_, free_->next));
  }

  /// From `pool`, or, null, the heap.
  static void* take(FramePool* pool, size_t bytes) {
    Block* block = nullptr;
    if (pool != nullptr && pool->free_ != nullptr && bytes <= kUsual)
      block = std::exchange(pool->free_, pool->free_->next);
    else
      block = static_cast<Block*>(::operator new(sizeof(Block) + std::max(bytes, kUsual)));
    block->pool = bytes <= kUsual ? pool : nullptr;
    return block + 1;
  }
  static void give(void* frame) {
    Block* const block = static_cast<Block*>(frame) - 1;
    FramePool* const pool = block->pool;
    if (pool == nullptr) return ::operator delete(block);
    block->next = std::exchange(pool->free_, block);
  }

 private:
  /// Frames are at most so large, but for those that hold arrays.
  static constexpr size_t kUsual = 512;
  struct alignas(std::max_align_t) Block {
    FramePool* pool;
    Block* next;
  };

  Block* free_ = nullptr;
};

}  // namespace nupa::ccl
