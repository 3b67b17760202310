// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace nupa::base {

/// A long array of zeros whose pages take memory only once they are used. `T` must be valid as zeros and need no
/// destructor.
template <class T>
class ZeroedArray {
 public:
  /// Throws std::bad_alloc.
  explicit ZeroedArray(uint32_t size) : places_(static_cast<T*>(std::calloc(size, sizeof(T)))) {
    if (places_ == nullptr && size != 0) throw std::bad_alloc();
  }

  T& operator[](uint32_t place) { return places_.get()[place]; }
  const T& operator[](uint32_t place) const { return places_.get()[place]; }

 private:
  struct Free {
    void operator()(T* places) const { std::free(places); }
  };
  std::unique_ptr<T, Free> places_;
};

}  // namespace nupa::base
