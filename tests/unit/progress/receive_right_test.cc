// SPDX-License-Identifier: Apache-2.0
#include "progress/receive_right.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <functional>
#include <utility>

#include "progress/descriptors.h"

namespace nupa::progress {
namespace {

/// Called in this thread after it has set a timer.
thread_local std::function<void()> after_setting_a_timer;

}  // namespace
}  // namespace nupa::progress

extern "C" __attribute__((visibility("default"))) int timerfd_settime_with_a_step(
    int fd, int flags, const itimerspec* at, itimerspec* before) __asm__("timerfd_settime");
int timerfd_settime_with_a_step(int fd, int flags, const itimerspec* at, itimerspec* before) {
  using Set = int(int, int, const itimerspec*, itimerspec*);
  static auto* const real = reinterpret_cast<Set*>(dlsym(RTLD_NEXT, "timerfd_settime"));
  const int result = real(fd, flags, at, before);
  if (const auto step = std::exchange(nupa::progress::after_setting_a_timer, nullptr)) step();
  return result;
}

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

TEST_F(ProgressReceiveRight, GrantThatEndsWhileTheClaimerLosesItsProcessor_EndsOnce) {
  {
    const ReceiveRight::Claim claim(right);
    // The end of the claim sets the timer. Before it goes on, the time is over and the serving thread takes the timer.
    after_setting_a_timer = [this] {
      ASSERT_TRUE(wait_readable(right.thread_fd(), Deadline::in_ms(10'000)));
      EXPECT_TRUE(right.end_grant());
      const ReceiveRight::Claim second(right);
      EXPECT_FALSE(second) << "the first claim still holds the right";
    };
  }
  packet_arrives();
  ASSERT_TRUE(wait_readable(right.thread_fd(), Deadline::in_ms(10'000))) << "packets wake no thread any more";
  EXPECT_TRUE(right.end_grant());
  EXPECT_TRUE(is_readable(right.thread_fd()));
  EXPECT_FALSE(right.end_grant()) << "once";
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
