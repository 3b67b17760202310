#pragma once
/// How long the communication manager waits and how often it asks.
#include <algorithm>
#include <cstdint>

namespace nupa::cm {

constexpr int64_t kLongestNs = INT64_C(60'000'000'000);
/// A time as messages have it: 4.096 us times 2 to the power of the code (IBTA 12.7), a minute at most.
constexpr int64_t from_code(uint8_t code) {
  constexpr int64_t kUnitNs = 4096;
  return std::min(kUnitNs << (code & 31), kLongestNs);
}

/// The sum of two such times, to the nearest code.
constexpr uint8_t sum_of_codes(uint8_t a, uint8_t b) {
  constexpr int kLargest = 31;
  const int longer = std::max(a, b);
  const bool counts = longer - std::min(a, b) <= 1;
  return static_cast<uint8_t>(std::min(longer + (counts ? 1 : 0), kLargest));
}
static_assert(sum_of_codes(16, 16) == 17 && sum_of_codes(15, 16) == 17 && sum_of_codes(16, 14) == 16);

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
