// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <time.h>

#include <cstdint>

#include "base/tick_counter.h"

namespace nupa::base {

inline constexpr int64_t kNsPerUs = 1'000;
inline constexpr int64_t kNsPerMs = 1'000'000;
inline constexpr int64_t kNsPerSecond = 1'000'000'000;

/// CLOCK_MONOTONIC in nanoseconds.
inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * kNsPerSecond + t.tv_nsec;
}

}  // namespace nupa::base
