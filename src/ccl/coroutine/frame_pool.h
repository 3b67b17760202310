// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

namespace nupa::ccl {

/// A free list for coroutine frames: a frame that ends leaves its memory to the next one. Not thread-safe. The pool
/// outlives all frames that were taken from it.
class FramePool {
 public:
  FramePool() = default;
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;
  ~FramePool() {
    while (free_ != nullptr) ::operator delete(std::exchange(free_, free_->next));
  }

  /// Takes memory from `pool`, or from the heap if `pool` is null.
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
  /// Size of a pooled block in bytes. Only frames that hold arrays are larger; their memory is not kept.
  static constexpr size_t kUsual = 512;
  struct alignas(std::max_align_t) Block {
    FramePool* pool;
    Block* next;
  };

  Block* free_ = nullptr;
};

}  // namespace nupa::ccl
