// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>

#include "progress/clock.h"
#include "progress/waiter.h"

namespace nupa::pool {

/// The time of a pool. Tests bring their own.
struct PoolClock {
  std::function<int64_t()> now_ns = progress::now_ns;
  /// Waits, where the heartbeat of another boot is watched.
  std::function<void(int64_t ns)> sleep_ns = progress::sleep_for;
};

}  // namespace nupa::pool
