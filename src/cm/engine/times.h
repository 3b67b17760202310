// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The timeouts and retries of the communication manager.
#include <algorithm>
#include <cstdint>

#include "base/time_code.h"

namespace nupa::cm {

using base::from_code;

/// A message is repeated after the time that the peer requested, then after twice that, and so on up to this pause.
/// This repeats soon after a loss. In total it lasts as long as with adapters, which wait this long each time.
constexpr int64_t kLongestPauseNs = from_code(20);
constexpr int64_t kShortestPauseNs = from_code(12);
/// The time that an MRA requests: 17 s.
constexpr uint8_t kServiceTimeout = 22;
/// Retries of a disconnect when its owner does not wait for it any more.
constexpr uint8_t kOrphanRetries = 4;
/// An exiting process repeats its DREQs to other hosts after this pause, and then after twice that, and so on.
constexpr int64_t kFarewellPauseNs = 60'000'000;
constexpr int64_t kLongestTimeWaitNs = INT64_C(2'000'000'000);
/// The time within which a rejected or answered request may be repeated. An earlier repeat may have been answered by an
/// MRA, and adapters then wait for their own pause, too.
constexpr int64_t kMemoryNs = from_code(kServiceTimeout) + 3 * kLongestPauseNs;

/// Returns how long the numbers of a connection stay unused after it, if the sender repeats after `ack_timeout`.
constexpr int64_t time_wait_of(uint8_t ack_timeout) { return std::min(2 * from_code(ack_timeout), kLongestTimeWaitNs); }

}  // namespace nupa::cm
