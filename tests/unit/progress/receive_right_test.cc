// SPDX-License-Identifier: Apache-2.0
#include "progress/receive_right.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "progress/descriptors.h"

namespace nupa::progress {
namespace {

class ProgressReceiveRight : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(right.open());
    socket.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    ASSERT_TRUE(right.add(socket.get()));
  }
  void packet_arrives() const {
    const uint64_t one = 1;
    ASSERT_EQ(write(socket.get(), &one, sizeof one), ssize_t{sizeof one});
  }

  ReceiveRight right;
  base::UniqueFd socket;
};

TEST_F(ProgressReceiveRight, NotClaimed_PacketsWakeTheServingThread) {
  EXPECT_FALSE(is_readable(right.thread_fd()));
  packet_arrives();
  EXPECT_TRUE(is_readable(right.thread_fd()));
  EXPECT_TRUE(is_readable(right.packets_fd()));
}

TEST_F(ProgressReceiveRight, Claimed_PacketsWakeTheClaimerOnly) {
  const ReceiveRight::Claim claim(right);
  ASSERT_TRUE(claim);
  packet_arrives();
  EXPECT_TRUE(is_readable(right.packets_fd()));
  EXPECT_FALSE(is_readable(right.thread_fd()));
}

TEST_F(ProgressReceiveRight, GrantAfterAClaim_EndsAndPacketsWakeTheServingThread) {
  { const ReceiveRight::Claim claim(right); }
  packet_arrives();
  // The grant's own end, and then the packets.
  ASSERT_TRUE(wait_readable(right.thread_fd(), Deadline::in_ms(10'000)));
  EXPECT_TRUE(right.end_grant());
  EXPECT_TRUE(is_readable(right.thread_fd()));
  EXPECT_FALSE(right.end_grant()) << "once";
}

TEST_F(ProgressReceiveRight, ClaimThatFollowsAGrant_OutlastsIt) {
  { const ReceiveRight::Claim first(right); }
  const ReceiveRight::Claim second(right);
  ASSERT_TRUE(second);
  ASSERT_TRUE(wait_readable(right.thread_fd(), Deadline::in_ms(10'000)));
  EXPECT_TRUE(right.end_grant());
  packet_arrives();
  EXPECT_FALSE(is_readable(right.thread_fd()));
}

TEST_F(ProgressReceiveRight, EachGrant_Ends) {
  for (int turn = 0; turn < 3; ++turn) {
    { const ReceiveRight::Claim claim(right); }
    ASSERT_TRUE(wait_readable(right.thread_fd(), Deadline::in_ms(10'000))) << turn;
    ASSERT_TRUE(right.end_grant());
    EXPECT_FALSE(is_readable(right.thread_fd()));
  }
}

TEST_F(ProgressReceiveRight, SecondClaim_IsEmptyAndTakesNothingAway) {
  const ReceiveRight::Claim first(right);
  {
    const ReceiveRight::Claim second(right);
    EXPECT_FALSE(second);
  }
  packet_arrives();
  EXPECT_FALSE(is_readable(right.thread_fd())) << "the first one still has it";
}

TEST_F(ProgressReceiveRight, AfterAClaim_AnotherOneMayFollow) {
  { const ReceiveRight::Claim first(right); }
  const ReceiveRight::Claim second(right);
  EXPECT_TRUE(second);
}

}  // namespace
}  // namespace nupa::progress
