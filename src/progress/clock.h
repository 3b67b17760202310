// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/clock.h"

namespace nupa::progress {

/// CLOCK_MONOTONIC in nanoseconds. One vDSO call. Any thread, signal handlers too.
using base::now_ns;

inline constexpr int64_t kNsPerUs = 1'000;
inline constexpr int64_t kNsPerMs = 1'000'000;
inline constexpr int64_t kNsPerSecond = 1'000'000'000;

}  // namespace nupa::progress
