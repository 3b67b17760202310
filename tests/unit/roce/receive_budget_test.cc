// SPDX-License-Identifier: Apache-2.0
/// Tests of the receive budget: how much all senders to a port may have under way.
#include <gtest/gtest.h>

#include "transport/roce/port/receive_budget.h"
#include "transport/roce/wire/wire.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kSocketBytes = 8 << 20;
constexpr int64_t kLong = 1'000'000'000;

/// `turns` choices, each after one look.
void look(ReceiveBudget* room, bool emptied, int turns, int64_t* now) {
  for (int i = 0; i < turns; ++i) {
    room->count_look(emptied);
    EXPECT_TRUE(room->choose(*now += kLong));
  }
}

TEST(RoceReceiveBudget, Share_SocketIsFoundEmpty_GrowsToAThirdOfTheSocket) {
  ReceiveBudget room(kSocketBytes);
  const uint32_t first = room.share();
  int64_t now = 0;
  look(&room, true, 1, &now);
  EXPECT_GT(room.share(), first);
  look(&room, true, 50, &now);
  EXPECT_EQ(room.share(), kSocketBytes / 3);
  EXPECT_EQ(room.for_responses(), kSocketBytes / 3);
}

TEST(RoceReceiveBudget, Share_PacketsAlwaysWait_Shrinks) {
  ReceiveBudget room(kSocketBytes);
  int64_t now = 0;
  look(&room, true, 50, &now);
  look(&room, false, 50, &now);
  EXPECT_EQ(room.share(), 128u << 10);
}

TEST(RoceReceiveBudget, Share_SmallSocket_IsAtMostAThird) {
  ReceiveBudget room(90'000);
  int64_t now = 0;
  EXPECT_LE(room.share(), 30'000u);
  look(&room, true, 20, &now);
  look(&room, false, 20, &now);
  EXPECT_LE(room.share(), 30'000u);
}

TEST(RoceReceiveBudget, Share_SeveralRecentSenders_IsDivided) {
  ReceiveBudget room(kSocketBytes);
  int64_t now = 0;
  look(&room, true, 50, &now);
  const uint32_t alone = room.share();
  uint64_t turns[4] = {};
  for (int again = 0; again < 3; ++again)
    for (uint64_t& turn : turns) room.count_sender(&turn);
  look(&room, true, 1, &now);
  EXPECT_EQ(room.share(), alone / 4);
  EXPECT_EQ(room.for_responses(), alone / 2);
  look(&room, true, 1, &now);  // the count before still holds
  EXPECT_EQ(room.share(), alone / 4);
  look(&room, true, 1, &now);
  EXPECT_EQ(room.share(), alone);
}

TEST(RoceReceiveBudget, Choose_BeforeItsTime_DoesNothing) {
  ReceiveBudget room(kSocketBytes);
  EXPECT_TRUE(room.choose(kLong));
  EXPECT_FALSE(room.choose(kLong + 1));
}

TEST(RoceReceiveBudget, Share_AtTheStart_IsSmall) {
  EXPECT_EQ(ReceiveBudget(kSocketBytes).share(), 512u << 10);
  EXPECT_EQ(ReceiveBudget(300'000).share(), 100'000u) << "the kernel's own overhead takes the rest";
}

TEST(RoceReceiveBudget, Share_EmptyInAThirdOfTheLooks_Grows) {
  ReceiveBudget room(kSocketBytes);
  int64_t now = 0;
  const auto choose = [&](int full, int empty) {
    const uint32_t before = room.share();
    for (int i = 0; i < full; ++i) room.count_look(false);
    for (int i = 0; i < empty; ++i) room.count_look(true);
    EXPECT_TRUE(room.choose(now += kLong));
    return room.share() > before;
  };
  EXPECT_TRUE(choose(2, 1));
  EXPECT_FALSE(choose(3, 1));
  EXPECT_TRUE(choose(0, 0)) << "looks count in their turn only";
  EXPECT_TRUE(choose(0, 9));
  EXPECT_FALSE(choose(1, 0)) << "empty ones too";
}

TEST(RoceReceiveBudget, Share_ChosenOften_StillCountsRecentSenders) {
  ReceiveBudget room(kSocketBytes);
  int64_t now = kLong;
  uint64_t turns[4] = {};
  EXPECT_TRUE(room.choose(now));
  for (uint64_t& turn : turns) room.count_sender(&turn);
  for (int i = 0; i < 5; ++i) {
    room.count_look(true);
    EXPECT_TRUE(room.choose(now += 1'000'000));
    EXPECT_LE(room.share(), kSocketBytes / 3 / 4) << i;
  }
}

TEST(RoceReceiveBudget, Share_ProcessSendsAgain_CountsAgain) {
  ReceiveBudget room(kSocketBytes);
  int64_t now = 0;
  look(&room, true, 50, &now);
  const uint32_t alone = room.share();
  uint64_t turns[4] = {};
  for (int round = 0; round < 3; ++round) {
    for (uint64_t& turn : turns) room.count_sender(&turn);
    look(&room, true, 1, &now);
    EXPECT_EQ(room.share(), alone / 4) << round;
    look(&room, true, 2, &now);
    EXPECT_EQ(room.share(), alone) << round;
  }
}

TEST(RoceReceiveBudget, Share_ManySenders_IsAtLeastTwoPackets) {
  ReceiveBudget room(90'000);
  uint64_t turns[100] = {};
  for (uint64_t& turn : turns) room.count_sender(&turn);
  EXPECT_TRUE(room.choose(kLong));
  EXPECT_EQ(room.share(), 2 * kMaxPacketBytes);
  ReceiveBudget tiny(3000);
  EXPECT_EQ(tiny.for_responses(), 2 * kMaxPacketBytes);
}

}  // namespace
}  // namespace nupa::roce
