/// How much all who send to a port may have under way.
#include <gtest/gtest.h>

#include "transport/roce/receive_room.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kSocketBytes = 8 << 20;
constexpr int64_t kLong = 1'000'000'000;

/// `turns` choices, each after one look.
void look(ReceiveRoom* room, bool emptied, int turns, int64_t* now) {
  for (int i = 0; i < turns; ++i) {
    room->count_look(emptied);
    EXPECT_TRUE(room->choose(*now += kLong));
  }
}

TEST(ReceiveRoom, GrowsToAThirdOfTheSocketWhileItIsFoundEmpty) {
  ReceiveRoom room(kSocketBytes);
  const uint32_t first = room.share();
  int64_t now = 0;
  look(&room, true, 1, &now);
  EXPECT_GT(room.share(), first);
  look(&room, true, 50, &now);
  EXPECT_EQ(room.share(), kSocketBytes / 3);
  EXPECT_EQ(room.for_responses(), kSocketBytes / 3);
}

TEST(ReceiveRoom, ShrinksWhilePacketsAlwaysWait) {
  ReceiveRoom room(kSocketBytes);
  int64_t now = 0;
  look(&room, true, 50, &now);
  look(&room, false, 50, &now);
  EXPECT_EQ(room.share(), 128u << 10);
}

TEST(ReceiveRoom, ASmallSocketIsNeverOverrun) {
  ReceiveRoom room(90'000);
  int64_t now = 0;
  EXPECT_LE(room.share(), 30'000u);
  look(&room, true, 20, &now);
  look(&room, false, 20, &now);
  EXPECT_LE(room.share(), 30'000u);
}

TEST(ReceiveRoom, IsSharedByThoseWhoSentOfLate) {
  ReceiveRoom room(kSocketBytes);
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

TEST(ReceiveRoom, ChoosesNowAndThenOnly) {
  ReceiveRoom room(kSocketBytes);
  EXPECT_TRUE(room.choose(kLong));
  EXPECT_FALSE(room.choose(kLong + 1));
}

}  // namespace
}  // namespace nupa::roce
