// SPDX-License-Identifier: Apache-2.0
#pragma once
/// eventfd(2) for the code that is checked. After shadow.h.
#include <sys/eventfd.h>

namespace nupa::progress {

/// eventfd(2): one word, which is read and written in one step. The waiter has the only one.
constexpr int kFd = 1 << 30;
inline char counter;
inline model::Site eventfd_site() { return {model::Where::current(), "eventfd", std::memory_order_acq_rel}; }

inline int eventfd(unsigned, int) { return kFd; }
inline ssize_t write(int, const void* from, size_t bytes) {
  if (!model::operations::in_thread()) return static_cast<ssize_t>(bytes);
  uint64_t count;
  ::std::memcpy(&count, from, bytes);
  model::operations::update(
      &counter, 0, std::memory_order_acq_rel, std::memory_order_acquire,
      [count](uint64_t old, uint64_t* fresh) {
        *fresh = old + count;
        return true;
      },
      eventfd_site());
  return static_cast<ssize_t>(bytes);
}
inline ssize_t read(int, void* to, size_t bytes) {
  // Between executions: what the last one left is taken.
  if (!model::operations::in_thread()) return static_cast<ssize_t>(sizeof(uint64_t));
  const uint64_t count = model::operations::update(
      &counter, 0, std::memory_order_acq_rel, std::memory_order_acquire,
      [](uint64_t old, uint64_t* fresh) {
        *fresh = 0;
        return old != 0;
      },
      eventfd_site());
  ::std::memcpy(to, &count, bytes);
  if (count != 0) return static_cast<ssize_t>(bytes);
  errno = EAGAIN;
  return -1;
}
}  // namespace nupa::progress
