// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::roce {

/// A packet sequence number that does not wrap; packets carry its low 24 bits (IBTA 9.2.1).
using Seq = uint64_t;
constexpr uint32_t kPsnMask = 0xffffff;

constexpr uint32_t psn_of(Seq seq) { return static_cast<uint32_t>(seq) & kPsnMask; }
/// Returns the first number of a connection whose first PSN is `psn`. It is 2^24 higher, so that numbers before it
/// exist.
constexpr Seq first_seq(uint32_t psn) { return (Seq{1} << 24) + (psn & kPsnMask); }
/// Returns the number nearest to `expected` with this PSN (IBTA 9.7.1: half of the numbers are past, half are to come).
constexpr Seq nearest(Seq expected, uint32_t psn) {
  const auto distance = static_cast<int32_t>((psn - psn_of(expected)) << 8) >> 8;
  return expected + static_cast<Seq>(static_cast<int64_t>(distance));
}
static_assert(nearest(first_seq(0), 0xffffff) == first_seq(0) - 1);
static_assert(nearest(first_seq(0xffffff), 0) == first_seq(0xffffff) + 1);

}  // namespace nupa::roce
