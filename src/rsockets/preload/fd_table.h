// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>
#include <new>

namespace nupa::sockets {

/// Pointers by descriptor number, read without a lock. The objects are reused but never freed.
template <class T>
class FdTable {
 public:
  T* get(int fd) const {
    const Slot* place = slot(fd);
    return place == nullptr ? nullptr : place->load(std::memory_order_acquire);
  }
  /// Returns false if there is no memory, or the number is too large.
  bool set(int fd, T* value) {
    Slot* place = make_slot(fd);
    if (place == nullptr) return false;
    place->store(value, std::memory_order_release);
    return true;
  }
  T* take(int fd) {
    Slot* place = slot(fd);
    return place == nullptr ? nullptr : place->exchange(nullptr);
  }
  template <class Each>
  void for_each(Each each) {
    for (auto& chunk : chunks_) {
      Slot* slots = chunk.load(std::memory_order_acquire);
      if (slots == nullptr) continue;
      for (uint32_t i = 0; i < kChunk; ++i) {
        if (T* value = slots[i].load()) each(value);
      }
    }
  }

 private:
  using Slot = std::atomic<T*>;
  static constexpr uint32_t kChunk = 1024;
  static constexpr uint32_t kChunks = 1024;

  Slot* slot(int fd) const {
    const auto index = static_cast<uint32_t>(fd);
    if (index >= kChunk * kChunks) [[unlikely]]
      return nullptr;
    Slot* chunk = chunks_[index / kChunk].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : &chunk[index % kChunk];
  }
  Slot* make_slot(int fd) {
    const auto index = static_cast<uint32_t>(fd);
    if (index >= kChunk * kChunks) return nullptr;
    auto& chunk = chunks_[index / kChunk];
    if (chunk.load(std::memory_order_acquire) == nullptr) {
      Slot* fresh = new (std::nothrow) Slot[kChunk]();
      Slot* expected = nullptr;
      if (fresh == nullptr) return nullptr;
      if (!chunk.compare_exchange_strong(expected, fresh)) delete[] fresh;
    }
    return slot(fd);
  }

  std::atomic<Slot*> chunks_[kChunks] = {};
};

}  // namespace nupa::sockets
