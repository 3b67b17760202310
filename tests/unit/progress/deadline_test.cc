// SPDX-License-Identifier: Apache-2.0
#include "progress/deadline.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace nupa::progress {
namespace {

TEST(ProgressDeadline, Never_DoesNotPass) {
  constexpr Deadline never = Deadline::never();
  timespec storage;
  EXPECT_FALSE(never.passed(INT64_MAX));
  EXPECT_FALSE(never.passed());
  EXPECT_EQ(INT64_MAX, never.left_ns(5));
  EXPECT_EQ(nullptr, never.left(&storage, 5));
  EXPECT_EQ(-1, never.left_ms(5));
}

TEST(ProgressDeadline, At_GivenTime_IsPassedFromThenOn) {
  constexpr Deadline at = Deadline::at(1'000);
  EXPECT_FALSE(at.passed(999));
  EXPECT_TRUE(at.passed(1'000));
  EXPECT_EQ(1, at.left_ns(999));
  EXPECT_EQ(0, at.left_ns(1'000));
  EXPECT_EQ(0, at.left_ns(5'000));
}

TEST(ProgressDeadline, InMs_OfANegativeTime_IsNever) {
  EXPECT_TRUE(Deadline::in_ms(-1).is_never());
  EXPECT_TRUE(Deadline::in_ms(0).passed());
  EXPECT_FALSE(Deadline::in_ms(10'000'000).passed());
}

TEST(ProgressDeadline, InNs_CountsFromNow) {
  EXPECT_EQ(107, Deadline::in_ns(7, 100).at_ns());
  EXPECT_TRUE(Deadline::in_ns(0, 100).passed(100));
  EXPECT_TRUE(Deadline::in_ns(-5, 100).passed(100));
}

TEST(ProgressDeadline, TimeTooLongToBeCounted_IsNever) {
  EXPECT_TRUE(Deadline::in_ns(INT64_MAX, 100).is_never());
  EXPECT_TRUE(Deadline::in_ms(INT64_MAX).is_never());
}

TEST(ProgressDeadline, Left_IsSplitForPpoll) {
  timespec storage;
  ASSERT_EQ(&storage, Deadline::at(2'500'000'007).left(&storage, 1'000'000'000));
  EXPECT_EQ(1, storage.tv_sec);
  EXPECT_EQ(500'000'007, storage.tv_nsec);
  ASSERT_NE(nullptr, Deadline::at(3).left(&storage, 7));
  EXPECT_EQ(0, storage.tv_sec);
  EXPECT_EQ(0, storage.tv_nsec);
}

TEST(ProgressDeadline, LeftMs_IsRoundedUp) {
  EXPECT_EQ(1, Deadline::at(1).left_ms(0));
  EXPECT_EQ(1, Deadline::at(1'000'000).left_ms(0));
  EXPECT_EQ(2, Deadline::at(1'000'001).left_ms(0));
  EXPECT_EQ(0, Deadline::at(1).left_ms(1));
  EXPECT_EQ(INT32_MAX, Deadline::at(INT64_MAX - 1).left_ms(0));
}

TEST(ProgressDeadline, Earlier_IsTheFirstOfTwo) {
  EXPECT_EQ(3, earlier(Deadline::at(3), Deadline::never()).at_ns());
  EXPECT_EQ(3, earlier(Deadline::at(9), Deadline::at(3)).at_ns());
}

TEST(ProgressBackoff, Pauses_DoubleUpToTheLongest) {
  Backoff backoff(5, 17);
  for (const int64_t pause : {5, 10, 17, 17}) EXPECT_EQ(pause, backoff.next_ns());
  backoff.reset();
  EXPECT_EQ(5, backoff.next_ns());
}

TEST(ProgressBackoff, FirstPauseAboveTheLongest_IsTheLongest) {
  Backoff backoff(50, 17);
  EXPECT_EQ(17, backoff.next_ns());
}

}  // namespace
}  // namespace nupa::progress
