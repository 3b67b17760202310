// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "core/seam/timers.h"

namespace nupa::core {
namespace {

static_assert(rnr_timer_ns(0) == 655'360'000, "usable at compile time");

TEST(IbtaTable45RnrNakTimer, EachCode_HasTheDelayOfTheTable) {
  // Milliseconds, as the specification prints them.
  constexpr double kMilliseconds[32] = {655.36, 0.01,  0.02,  0.03,   0.04,   0.06,   0.08,   0.12,
                                        0.16,   0.24,  0.32,  0.48,   0.64,   0.96,   1.28,   1.92,
                                        2.56,   3.84,  5.12,  7.68,   10.24,  15.36,  20.48,  30.72,
                                        40.96,  61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52};
  for (uint32_t code = 0; code < 32; ++code)
    EXPECT_EQ(std::llround(kMilliseconds[code] * 1e6), rnr_timer_ns(code)) << code;
}

TEST(Ibta97613LocalAckTimeout, EachCode_Is4096NsTimesAPowerOfTwo) {
  for (uint32_t code = 1; code < 32; ++code)
    EXPECT_EQ(std::llround(4096.0 * std::pow(2, code)), ack_timeout_ns(code)) << code;
  EXPECT_EQ(67'108'864, ack_timeout_ns(14)) << "the 67 ms that programs know code 14 by";
}

TEST(Ibta97613LocalAckTimeout, CodeZero_IsNoTimeout) { EXPECT_EQ(0, ack_timeout_ns(0)); }

}  // namespace
}  // namespace nupa::core
