// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>

#include "base/time_code.h"

namespace nupa::core {

/// How long a requester waits for its peer, in the specification's codes (IBTA 9.7.5.2.8, 9.7.6.1.3). A queue pair's
/// owner may change them at any time.
struct RetryLimits {
  uint8_t timeout = 14;  ///< 4.096 us times 2 to this power; 0: no end
  uint8_t retry_cnt = 7;
  uint8_t rnr_retry = 7;  ///< kRnrForEver: no end
};
/// The `rnr_retry` of a requester that waits for a receive until there is one (IBTA 9.7.5.2.8).
constexpr uint8_t kRnrForEver = 7;

/// Local ACK timeout code to nanoseconds: 0 means none (IBTA 9.7.6.1.3).
constexpr int64_t ack_timeout_ns(uint32_t code) { return code == 0 ? 0 : base::time_of_code(code); }

/// A requester waits for an answer for at least one timeout and at most so many (IBTA 9.7.6.1.3).
constexpr int64_t kMostTimeouts = 4;

/// After how long without an answer a request ends, of a peer that may answer late because its process has to wait for
/// a processor: the longest that the specification has. 0: never.
constexpr int64_t patience_ns(uint32_t timeout, uint32_t retry_cnt) {
  return (int64_t{retry_cnt} + 1) * kMostTimeouts * ack_timeout_ns(timeout);
}

/// RNR NAK timer code to nanoseconds (IBTA table 45; the table is in units of 10 us).
constexpr int64_t rnr_timer_ns(uint32_t code) {
  constexpr std::array<int64_t, 32> kTensOfMicroseconds = {
      65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
      256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return kTensOfMicroseconds[code & 31] * 10'000;
}

}  // namespace nupa::core
