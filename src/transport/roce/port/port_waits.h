// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "progress/receive_right.h"
#include "transport/roce/port/port.h"

namespace nupa::roce {

/// What the threads of a port sleep on.
struct Port::Waits {
  /// A packet came for this channel. Under the receive mutex.
  void came_for(const Channel& channel, int64_t now) {
    if (latest == &channel) return;
    latest = &channel;
    latest_since_ns = now;
  }
  /// For a while all packets have been this channel's: none of others stands behind them.
  bool is_alone(const Channel& channel, int64_t now) const {
    constexpr int64_t kWhileNs = 1'000'000;
    return latest == &channel && now - latest_since_ns >= kWhileNs;
  }

  const Channel* latest = nullptr;  ///< that a packet came for; these two under the receive mutex
  int64_t latest_since_ns = 0;
  progress::ReceiveRight right;
};

}  // namespace nupa::roce
