#pragma once
#include <algorithm>
#include <cstdint>

namespace nupa::base {

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

}  // namespace nupa::base
