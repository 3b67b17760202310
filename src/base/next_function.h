// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Functions that stand before those of libc in a preloaded library.

#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <type_traits>
#include <utility>

#define NUPA_SHOWN extern "C" __attribute__((visibility("default")))

namespace nupa::base {

/// libc's function of a name, looked up once. Atomic and without a lock, since programs call such functions in signal
/// handlers and between fork and exec.
template <class Function>
class NextFunction {
 public:
  explicit constexpr NextFunction(const char* name) : name_(name) {}

  /// Returns the result of the function; fails with ENOSYS if this libc has no function of that name.
  template <class... Arguments>
  auto operator()(Arguments... arguments) {
    using Result = decltype(std::declval<Function*>()(arguments...));
    Function* real = real_.load(std::memory_order_relaxed);
    if (real == nullptr) [[unlikely]] {
      real = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name_));
      real_.store(real, std::memory_order_relaxed);
    }
    if (real != nullptr) return real(arguments...);
    errno = ENOSYS;
    if constexpr (std::is_pointer_v<Result>)
      return Result{nullptr};
    else
      return Result{-1};
  }

 private:
  const char* name_;
  std::atomic<Function*> real_{nullptr};
};

}  // namespace nupa::base
