// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>

#include "base/time_code.h"

namespace nupa::core {

/// The timeout and retry counts of a requester, in the specification's codes (IBTA 9.7.5.2.8, 9.7.6.1.3). A queue
/// pair's owner may change them at any time.
struct RetryLimits {
  uint8_t timeout = 14;  ///< 4.096 us times 2 to this power; 0: unlimited
  uint8_t retry_cnt = 7;
  uint8_t rnr_retry = 7;  ///< kRnrForEver: unlimited
};
/// The `rnr_retry` of a requester that waits without limit until a receive is posted (IBTA 9.7.5.2.8).
constexpr uint8_t kRnrForEver = 7;

/// Converts a local ACK timeout code to nanoseconds; 0: no timeout (IBTA 9.7.6.1.3).
constexpr int64_t ack_timeout_ns(uint32_t code) { return code == 0 ? 0 : base::time_of_code(code); }

/// A requester waits for an answer for at least one timeout and at most this number of timeouts (IBTA 9.7.6.1.3).
constexpr int64_t kMostTimeouts = 4;

/// Returns the time without an answer after which a request fails, ns; 0: never. It is the longest time that the
/// specification allows, because a peer may answer late while its process waits for a processor.
constexpr int64_t retry_limit_ns(uint32_t timeout, uint32_t retry_cnt) {
  return (int64_t{retry_cnt} + 1) * kMostTimeouts * ack_timeout_ns(timeout);
}

/// Converts an RNR NAK timer code to nanoseconds (IBTA table 45; the table is in units of 10 us).
constexpr int64_t rnr_timer_ns(uint32_t code) {
  constexpr std::array<int64_t, 32> kTensOfMicroseconds = {
      65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
      256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return kTensOfMicroseconds[code & 31] * 10'000;
}

}  // namespace nupa::core
