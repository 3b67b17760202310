#pragma once
/// How long the communication manager waits and how often it asks.
#include <algorithm>
#include <cstdint>

#include "base/time_code.h"

namespace nupa::cm {

using base::from_code;

/// A message is repeated after the time that the other end named, then after twice that and so on up to this: soon
/// after a loss, and all in all as long as adapters are patient, who wait so long each time.
constexpr int64_t kLongestPauseNs = from_code(20);
constexpr int64_t kShortestPauseNs = from_code(12);
/// What a MRA asks for: 17 s.
constexpr uint8_t kServiceTimeout = 22;
/// For disconnecting, when nobody is there any more who waits for it.
constexpr uint8_t kOrphanRetries = 4;
constexpr int64_t kLongestTimeWaitNs = INT64_C(2'000'000'000);
/// Repeats of a request that was refused, or of a question that was answered, come within that: the last one before may
/// have been answered by a MRA, and adapters wait for their own pause then.
constexpr int64_t kMemoryNs = from_code(kServiceTimeout) + 3 * kLongestPauseNs;

/// How long numbers of a connection stay out of use whose sender repeats after `ack_timeout`.
constexpr int64_t time_wait_of(uint8_t ack_timeout) { return std::min(2 * from_code(ack_timeout), kLongestTimeWaitNs); }

}  // namespace nupa::cm
