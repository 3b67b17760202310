// SPDX-License-Identifier: Apache-2.0
#include "progress/poll_policy.h"

#include <gtest/gtest.h>

namespace nupa::progress {
namespace {

struct Case {
  const char* what;
  PollsSeen before, now;
  bool puts_off;
};

TEST(ProgressPollPolicy, Look_IsPutOffWhilePollsAreDenseAndPacketsCome) {
  constexpr Case kCases[] = {
      {"a fast ping-pong", {0, 1000, 50}, {500'000, 2200, 120}, true},
      {"just often enough", {0, 1000, 50}, {500'000, 1020, 51}, true},
      {"a program that computes between its polls", {0, 1000, 50}, {500'000, 1019, 51}, false},
      {"a program that has stopped", {0, 1000, 50}, {500'000, 1000, 51}, false},
      {"a program that needs no packets", {0, 1000, 50}, {500'000, 90'000, 50}, false},
      {"at once", {7, 1000, 50}, {7, 1000, 51}, true},
  };
  for (const Case& each : kCases) EXPECT_EQ(needs_no_look(each.before, each.now), each.puts_off) << each.what;
}

TEST(ProgressLookPolicy, LooksThatFindNothing_AreSkippedMoreAndMoreOften) {
  LookPolicy policy;
  for (const uint32_t skipped : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 128u, 256u, 256u}) {
    ASSERT_TRUE(policy.looks());
    policy.looked(false);
    for (uint32_t i = 0; i < skipped; ++i) ASSERT_FALSE(policy.looks()) << i << " of " << skipped;
  }
  EXPECT_TRUE(policy.looks()) << "it is tried again";
}

TEST(ProgressLookPolicy, LookThatFindsSomething_IsFollowedByAnother) {
  LookPolicy policy;
  policy.looked(false);
  policy.looked(false);
  policy.looked(true);
  EXPECT_TRUE(policy.looks());
  policy.looked(false);
  EXPECT_FALSE(policy.looks());
  EXPECT_TRUE(policy.looks()) << "counted from the beginning";
}

}  // namespace
}  // namespace nupa::progress
