// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

#include "base/zeroed_array.h"

namespace nupa::core {

/// The objects of one kind by number. Its memory grows with the highest number that was used, page by page. One thread
/// at a time changes it (ObjectTables::mutex()), any thread reads. enter() releases the object, and at() acquires it.
template <class T>
class ObjectTable {
 public:
  /// Throws std::bad_alloc.
  explicit ObjectTable(uint32_t size) : places_(size) {}

  /// Null: there is none. `number` is below the size.
  T* at(uint32_t number) const { return places_[number].load(std::memory_order_acquire); }
  void enter(uint32_t number, T* object) {
    places_[number].store(object, std::memory_order_release);
    if (number >= high_water()) high_water_.store(number + 1, std::memory_order_release);
  }
  /// Returns the object that was there.
  T* leave(uint32_t number) { return places_[number].exchange(nullptr); }
  /// This number and all above it were never used.
  uint32_t high_water() const { return high_water_.load(std::memory_order_acquire); }

 private:
  base::ZeroedArray<std::atomic<T*>> places_;
  std::atomic<uint32_t> high_water_{0};
};

}  // namespace nupa::core
