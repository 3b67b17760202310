// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>

namespace nupa::base {

/// The time of a specification's field in nanoseconds: 4.096 us times 2 to the power of the code. Only the low five
/// bits of the code count (IBTA 9.7.6.1.3, 12.7).
constexpr int64_t time_of_code(uint32_t code) { return INT64_C(4096) << (code & 31); }

constexpr int64_t kLongestNs = INT64_C(60'000'000'000);
/// The same for fields of the communication manager's messages, at most one minute.
constexpr int64_t from_code(uint8_t code) { return std::min(time_of_code(code), kLongestNs); }

/// The code nearest to the sum of two such times.
constexpr uint8_t sum_of_codes(uint8_t a, uint8_t b) {
  constexpr int kLargest = 31;
  const int longer = std::max(a, b);
  const bool counts = longer - std::min(a, b) <= 1;
  return static_cast<uint8_t>(std::min(longer + (counts ? 1 : 0), kLargest));
}
static_assert(sum_of_codes(16, 16) == 17 && sum_of_codes(15, 16) == 17 && sum_of_codes(16, 14) == 16);

}  // namespace nupa::base
