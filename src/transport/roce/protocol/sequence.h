#pragma once
#include <cstdint>

namespace nupa::roce {

/// A packet sequence number that does not wrap: the wire shows the low 24 bits of it (IBTA 9.2.1).
using Seq = uint64_t;
constexpr uint32_t kPsnMask = 0xffffff;

constexpr uint32_t psn_of(Seq seq) { return static_cast<uint32_t>(seq) & kPsnMask; }
/// Where a connection whose first PSN is `psn` starts: one turn up, so that numbers before it exist.
constexpr Seq first_seq(uint32_t psn) { return (Seq{1} << 24) + (psn & kPsnMask); }
/// The number nearest to `expected` that shows as `psn` (IBTA 9.7.1: half of the numbers are past, half are to come).
constexpr Seq nearest(Seq expected, uint32_t psn) {
  const auto distance = static_cast<int32_t>((psn - psn_of(expected)) << 8) >> 8;
  return expected + static_cast<Seq>(static_cast<int64_t>(distance));
}
static_assert(nearest(first_seq(0), 0xffffff) == first_seq(0) - 1);
static_assert(nearest(first_seq(0xffffff), 0) == first_seq(0xffffff) + 1);

}  // namespace nupa::roce
