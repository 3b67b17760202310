// SPDX-License-Identifier: Apache-2.0
#include "progress/neighbours.h"

#include <gtest/gtest.h>

namespace nupa::progress {
namespace {

constexpr int64_t kShort = Neighbours::kYieldAloneNs - 1;
constexpr int64_t kLong = Neighbours::kYieldAloneNs;

TEST(ProgressNeighbours, ShortYields_MeanAnUnsharedCore) {
  Neighbours neighbours;
  for (int i = 0; i < 10; ++i) neighbours.yielded(kShort);
  EXPECT_FALSE(neighbours.share_core());
}

TEST(ProgressNeighbours, EmptyPolls_UnsharedCore_YieldSeldom) {
  Neighbours neighbours;
  uint32_t yields = 0;
  for (uint32_t polls = 1; polls <= 10 * Neighbours::kPolitePolls; ++polls) yields += neighbours.wants_yield(polls);
  EXPECT_EQ(yields, 10u);
}

TEST(ProgressNeighbours, EmptyPolls_SharedCore_YieldEachTime) {
  Neighbours neighbours;
  for (uint32_t i = 0; i < Neighbours::kSure; ++i) neighbours.yielded(kLong);
  for (uint32_t polls = 1; polls < Neighbours::kBelieved; ++polls) ASSERT_TRUE(neighbours.wants_yield(polls));
}

TEST(ProgressNeighbours, OneLongYield_DoesNotMeanASharedCore) {
  Neighbours neighbours;
  for (int i = 0; i < 10; ++i) {
    neighbours.yielded(kLong);
    EXPECT_FALSE(neighbours.share_core());
    neighbours.yielded(kShort);
  }
}

TEST(ProgressNeighbours, LongYieldsInARow_MeanASharedCoreForSoManyAnswers) {
  Neighbours neighbours;
  for (uint32_t i = 0; i < Neighbours::kSure; ++i) neighbours.yielded(kLong);
  for (uint32_t i = 0; i < Neighbours::kBelieved; ++i) ASSERT_TRUE(neighbours.share_core());
  EXPECT_FALSE(neighbours.share_core()) << "it has to be found out again";
}

TEST(ProgressNeighbours, AnotherLongYield_RenewsTheAnswer) {
  Neighbours neighbours;
  for (uint32_t i = 0; i < Neighbours::kSure; ++i) neighbours.yielded(kLong);
  for (uint32_t i = 0; i < 3 * Neighbours::kBelieved; ++i) {
    ASSERT_TRUE(neighbours.share_core());
    neighbours.yielded(kLong);
  }
}

TEST(ProgressNeighbours, YieldAsLongAsATimeSlice_EndsTheYielding) {
  Neighbours neighbours;
  for (uint32_t i = 0; i < Neighbours::kSure; ++i) neighbours.yielded(kLong);
  neighbours.yielded(Neighbours::kAwayNs);
  EXPECT_FALSE(neighbours.share_core());
  neighbours.yielded(kLong);
  EXPECT_FALSE(neighbours.share_core());
}

TEST(ProgressNeighbours, OfThread_IsTheSameEachTime) { EXPECT_EQ(&Neighbours::of_thread(), &Neighbours::of_thread()); }

}  // namespace
}  // namespace nupa::progress
