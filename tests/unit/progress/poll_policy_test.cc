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

TEST(ProgressPollPolicy, StepAfterALook_IsByWhatCameAndWhoLooks) {
  using Step = PollPolicy::Step;
  struct Seen {
    const char* what;
    PollPolicy::Look look;
    Step step;
  };
  constexpr Seen kCases[] = {
      {"a ping-pong", {true, 1, false, false, false}, Step::kProgramFirst},
      {"two packets", {true, 2, false, false, false}, Step::kProgramFirst},
      {"a ping-pong whose last message is not answered", {true, 1, true, false, false}, Step::kProgramFirst},
      {"three packets", {true, 3, false, false, false}, Step::kWork},
      {"part of a stream", {true, 1, false, true, false}, Step::kWork},
      {"a timer is due", {true, 1, false, false, true}, Step::kWork},
      {"nothing, but something is owed", {true, 0, true, false, false}, Step::kWork},
      {"the port's thread, nothing", {false, 0, false, false, false}, Step::kWork},
      {"the port's thread, a packet", {false, 1, false, false, false}, Step::kWork},
  };
  for (const Seen& each : kCases) {
    PollPolicy policy;
    EXPECT_EQ(policy.after(each.look), each.step) << each.what;
  }
}

TEST(ProgressPollPolicy, PollsThatFindNothing_LookAtTheTimersEachEighthTime) {
  PollPolicy policy;
  constexpr PollPolicy::Look kNothing{true, 0, false, false, false};
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 7; ++i) EXPECT_EQ(policy.after(kNothing), PollPolicy::Step::kReturn) << i;
    EXPECT_EQ(policy.after(kNothing), PollPolicy::Step::kWork);
  }
}

TEST(ProgressPollPolicy, EmptyPollsOfMemory_YieldAfter1024AndThenEach128) {
  for (const uint32_t polls : {1u, 128u, 1023u, 1025u, 1151u, 1153u})
    EXPECT_FALSE(yields_after_empty_polls(polls)) << polls;
  for (const uint32_t polls : {1024u, 1152u, 1280u}) EXPECT_TRUE(yields_after_empty_polls(polls)) << polls;
}

TEST(ProgressPollPolicy, PollsThatCannotReceive_YieldEach32ndTime) {
  for (uint32_t polls = 1; polls <= 96; ++polls)
    EXPECT_EQ(PollPolicy::yields_to_receiver(polls), polls % 32 == 0) << polls;
}

/// A thread that serves sockets, turn by turn.
class ProgressThreadPolicy : public ::testing::Test {
 protected:
  static constexpr int64_t kForgotten = 1'000'000'000'000;  ///< a deadline that is far off
  /// A turn in which programs have polled so much more. Returns whether they take the packets.
  bool begins(uint64_t more_polls) {
    return policy.begin({polls += more_polls, slept_after}) == ThreadPolicy::Step::kSleepForTimers;
  }
  /// For how long it sleeps.
  int64_t sleep() const { return policy.sleeps_until(kForgotten, now) - now; }
  bool ends(bool left, bool worked) { return policy.end({now, packets, left, worked}); }
  /// A whole turn beside a program that polls.
  bool watches(bool left = false, bool worked = false) {
    const bool watched = begins(100);
    ends(left, worked);
    return watched;
  }
  ThreadPolicy policy;
  uint64_t polls = 0, slept_after = 0, packets = 0;
  int64_t now = 1'000'000'000;
};

TEST_F(ProgressThreadPolicy, NoPolls_ThreadSleepsForPacketsUntilTheNextDeadline) {
  EXPECT_FALSE(begins(0));
  EXPECT_EQ(policy.sleeps_until(now + 7, now), now + 7);
  EXPECT_EQ(policy.sleeps_until(INT64_MAX, now), INT64_MAX);
  EXPECT_TRUE(policy.lingers(true)) << "after a part of a stream";
  EXPECT_FALSE(policy.lingers(false));
}

TEST_F(ProgressThreadPolicy, ProgramPolls_ThreadLooksEverMoreSeldom) {
  for (const int64_t expected : {250'000, 500'000, 1'000'000, 1'000'000}) {
    ASSERT_TRUE(begins(100));
    EXPECT_EQ(sleep(), expected);
    EXPECT_FALSE(policy.lingers(true)) << "the program may need the core";
    ends(false, false);
  }
  ASSERT_TRUE(begins(100));
  EXPECT_EQ(policy.sleeps_until(now + 300'000, now), now + 300'000) << "a deadline comes before";
  EXPECT_EQ(policy.sleeps_until(now - 1, now), now + 62'500) << "the shortest look, whatever is due";
  ends(false, false);
  EXPECT_FALSE(begins(0)) << "it has stopped";
  ends(false, false);
  ASSERT_TRUE(begins(100));
  EXPECT_EQ(sleep(), 250'000) << "from the beginning";
}

TEST_F(ProgressThreadPolicy, PollsJustBeforeTheProgramSleeps_DoNotCount) {
  ASSERT_TRUE(begins(100));
  ends(false, false);
  slept_after = polls + 1;
  EXPECT_FALSE(begins(5)) << "once for each queue that it armed";
  ends(false, false);
  EXPECT_TRUE(begins(1)) << "it is awake again";
}

TEST_F(ProgressThreadPolicy, PacketsLeftInThreeLooksInARow_AreTakenByTheThreadFor64Turns) {
  EXPECT_TRUE(watches(true, true));
  EXPECT_TRUE(watches(true, true));
  EXPECT_TRUE(watches(false, true)) << "not in a row";
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(watches(true, true)) << i;
  for (int i = 0; i < 64; ++i) EXPECT_FALSE(watches(false, false)) << i;
  EXPECT_TRUE(watches()) << "it is over";
}

TEST_F(ProgressThreadPolicy, PacketsInTheLastOfThe64Turns_ProlongThem) {
  for (int i = 0; i < 3; ++i) watches(true, true);
  for (int i = 0; i < 63; ++i) EXPECT_FALSE(watches(false, false)) << i;
  EXPECT_FALSE(watches(false, true));
  for (int i = 0; i < 64; ++i) EXPECT_FALSE(watches(false, false)) << i;
  EXPECT_TRUE(watches());
}

TEST_F(ProgressThreadPolicy, ProgramThatSaysWhenItSleeps_FetchesItsPacketsItself) {
  slept_after = 1;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(watches(true, true)) << i;
}

TEST_F(ProgressThreadPolicy, PollsWithoutPacketsFor100Ms_AreNotMadeExpensive) {
  begins(100);
  EXPECT_FALSE(ends(false, false));
  now += 99'999'999;
  begins(100);
  EXPECT_FALSE(ends(false, false));
  now += 1;
  begins(100);
  EXPECT_TRUE(ends(false, false));
  ++packets;
  begins(100);
  EXPECT_FALSE(ends(false, false)) << "one came";
  now += 100'000'000;
  begins(0);
  EXPECT_FALSE(ends(false, false)) << "nobody polls";
  begins(100);
  EXPECT_FALSE(ends(false, false)) << "from the beginning";
}

TEST(ProgressLingerPolicy, PartOfAStream_KeepsTheThreadAwakeFor50us) {
  LingerPolicy policy(1'000'000);
  EXPECT_TRUE(policy.goes_on(1'049'999));
  EXPECT_FALSE(policy.goes_on(1'050'000));
  policy.stream_came(1'040'000);
  EXPECT_TRUE(policy.goes_on(1'089'999));
  EXPECT_FALSE(policy.goes_on(1'090'000));
}

class ProgressPacketLoopPolicy : public ::testing::Test {
 protected:
  using Step = PacketLoopPolicy::Step;
  PacketLoopPolicy policy;
  static constexpr int64_t kNow = 1'000'000'000;
};

TEST_F(ProgressPacketLoopPolicy, WithoutWork_ItLooksFor50usAndSleeps) {
  EXPECT_EQ(policy.found_nothing(kNow), Step::kYieldTimed);
  EXPECT_EQ(policy.found_nothing(kNow + 49'999), Step::kYieldTimed);
  EXPECT_EQ(policy.found_nothing(kNow + 50'000), Step::kSleep);
  EXPECT_EQ(policy.found_nothing(kNow + 60'000), Step::kYieldTimed) << "it was woken";
  policy.worked();
  EXPECT_EQ(policy.found_nothing(kNow + 100'000), Step::kYieldTimed);
  EXPECT_EQ(policy.found_nothing(kNow + 149'999), Step::kYieldTimed) << "from when there was nothing";
}

TEST_F(ProgressPacketLoopPolicy, StreamByPackets_IsLookedForFor2ms) {
  policy.moved_by_packets(16 * 1024);
  EXPECT_EQ(policy.found_nothing(kNow), Step::kYield);
  policy.yielded(kNow, kNow + 100'000'000);
  EXPECT_EQ(policy.found_nothing(kNow + 1'999'999), Step::kYield) << "whatever yields cost";
  EXPECT_EQ(policy.found_nothing(kNow + 2'000'000), Step::kSleep);
}

TEST_F(ProgressPacketLoopPolicy, StreamByMemory_LetsItSleepAtOnceFor1ms) {
  policy.moved_by_memory(16 * 1024);
  EXPECT_EQ(policy.found_nothing(kNow), Step::kSleep);
  EXPECT_EQ(policy.found_nothing(kNow + 999'999), Step::kSleep);
  EXPECT_EQ(policy.found_nothing(kNow + 1'000'000), Step::kYieldTimed);
}

TEST_F(ProgressPacketLoopPolicy, FewerBytesThanAStream_AreNoStream) {
  policy.moved_by_packets(16 * 1024 - 1);
  policy.moved_by_memory(16 * 1024 - 1);
  EXPECT_EQ(policy.found_nothing(kNow), Step::kYieldTimed);
  policy.moved_by_memory(1);
  policy.worked();
  EXPECT_EQ(policy.found_nothing(kNow + 1), Step::kYieldTimed) << "counted from when there was nothing";
}

TEST_F(ProgressPacketLoopPolicy, ProgramThatNeverSleeps_IsYieldedToEverMoreSeldom) {
  int64_t now = kNow;
  for (const int64_t crowded : {10, 20, 40, 80, 160, 160}) {
    ASSERT_EQ(policy.found_nothing(now), Step::kYieldTimed);
    policy.yielded(now, now + 2'000'000);
    now += 2'000'000 + crowded * 1'000'000;
    policy.worked();
    EXPECT_EQ(policy.found_nothing(now - 1), Step::kSleep) << crowded;
  }
  // It is left alone for as long.
  now += 160'000'000;
  policy.worked();
  ASSERT_EQ(policy.found_nothing(now), Step::kYieldTimed);
  policy.yielded(now, now + 2'000'000);
  now += 12'000'000;
  policy.worked();
  EXPECT_EQ(policy.found_nothing(now), Step::kYieldTimed) << "the first time again";
}

TEST_F(ProgressPacketLoopPolicy, ShortYield_DoesNotMeanASharedCore) {
  policy.found_nothing(kNow);
  policy.yielded(kNow, kNow + 1'999'999);
  EXPECT_EQ(policy.found_nothing(kNow + 10), Step::kYieldTimed);
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
