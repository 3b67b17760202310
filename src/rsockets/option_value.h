// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace nupa::rsockets {

/// Reads an option's value. EINVAL if the value is shorter than the type.
template <class T>
int read_option(const void* value, socklen_t length, T* result) {
  if (value == nullptr || length < sizeof(T)) return -EINVAL;
  std::memcpy(result, value, sizeof(T));
  return 0;
}

/// Writes as much of the value as fits, as getsockopt() does.
template <class T>
int give_option(const T& result, void* value, socklen_t* length) {
  if (value == nullptr || length == nullptr) return -EFAULT;
  *length = std::min<socklen_t>(*length, sizeof(T));
  std::memcpy(value, &result, *length);
  return 0;
}

inline int64_t to_ms(const timeval& time) {
  const int64_t ms = time.tv_sec * INT64_C(1000) + (time.tv_usec + 999) / 1000;
  return ms == 0 ? -1 : ms;  // zero means no timeout
}
inline timeval to_timeval(int64_t ms) {
  if (ms < 0) return {0, 0};
  return {static_cast<time_t>(ms / 1000), static_cast<suseconds_t>(ms % 1000 * 1000)};
}

}  // namespace nupa::rsockets
