// SPDX-License-Identifier: Apache-2.0
#include "progress/timer_descriptor.h"

#include <gtest/gtest.h>

#include "progress/clock.h"
#include "progress/descriptors.h"

namespace nupa::progress {
namespace {

constexpr int64_t kHourNs = 3'600'000'000'000;

TEST(ProgressTimerDescriptor, Set_IsReadableAtItsTimeUntilItIsTaken) {
  TimerDescriptor timer;
  ASSERT_TRUE(timer.open());
  timer.set(now_ns() + kHourNs);
  EXPECT_FALSE(is_readable(timer.fd()));
  const int64_t soon = now_ns() + 1'000'000;
  timer.set(soon);
  ASSERT_TRUE(wait_readable(timer.fd(), Deadline::in_ms(10'000)));
  EXPECT_GE(now_ns(), soon);
  timer.take();
  EXPECT_FALSE(is_readable(timer.fd()));
  timer.take();
}

TEST(ProgressTimerDescriptor, TimeThatHasPassed_IsReadableAtOnce) {
  TimerDescriptor timer;
  ASSERT_TRUE(timer.open());
  for (const int64_t at : {int64_t{-5}, int64_t{0}, now_ns()}) {
    timer.set(at);
    EXPECT_TRUE(wait_readable(timer.fd(), Deadline::in_ms(10'000))) << at;
  }
}

TEST(ProgressTimerDescriptor, TimeThatIsPutOff_IsNotReadableBefore) {
  TimerDescriptor timer;
  ASSERT_TRUE(timer.open());
  timer.set(now_ns());
  ASSERT_TRUE(wait_readable(timer.fd(), Deadline::in_ms(10'000)));
  timer.set(now_ns() + kHourNs);
  EXPECT_FALSE(is_readable(timer.fd()));
}

}  // namespace
}  // namespace nupa::progress
