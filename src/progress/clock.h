// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "base/clock.h"

namespace nupa::progress {

/// CLOCK_MONOTONIC in nanoseconds. One vDSO call. Any thread, signal handlers too.
using base::now_ns;

using base::kNsPerMs;
using base::kNsPerSecond;
using base::kNsPerUs;

}  // namespace nupa::progress
