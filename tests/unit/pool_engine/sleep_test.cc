// SPDX-License-Identifier: Apache-2.0
/// The sleep of the engine on doorbells: what wakes it, and what it looks at before.
#include "progress/descriptors.h"
#include "requests.h"

namespace nupa::pool::test {
namespace {

constexpr auto kThread = progress::Receiver::kThread;
constexpr auto kSleeper = progress::Receiver::kSleeper;

class PoolSleep : public PoolEngine {
 protected:
  PoolSleep() : PoolEngine(kLines, true) {}

  Pair a{*hosts[0], 1, 1, 2};
  Pair b{*hosts[1], 0, 2, 1};

  Engine& engine(uint16_t host) { return *hosts[host]->engine; }
  bool is_rung(uint16_t host) { return progress::is_readable(hosts[host]->pool.doorbell()); }
  int sleepers(uint16_t host) { return medium.sleepers[host]; }
  /// One message has been exchanged, and nothing is left to do.
  void quieten() {
    b.core().receives.push_back(64);
    a.send(100, 8);
    ASSERT_TRUE(done(a, a.core().done.size() + 1));
    ASSERT_TRUE(until([this] { return engine(0).wakes() && engine(1).wakes(); })) << "rung, some time after it";
  }
  /// How far from now the thread wakes by itself, after a turn. Less, if this thread loses its core meanwhile.
  int64_t pause(uint16_t host) {
    hosts[host]->turn();
    return engine(host).poller().wanted_at() - base::now_ns();
  }
  /// The same after a heartbeat has just been due: the longest pause.
  int64_t longest_pause(uint16_t host) {
    int64_t longest = 0;
    const int beats = hosts[host]->pool.beats + 3;
    const int64_t limit = base::now_ns() + INT64_C(10'000'000'000);
    while (hosts[host]->pool.beats < beats && base::now_ns() < limit) {
      // As the thread does between its turns: nobody polls.
      EXPECT_TRUE(engine(host).begin_sleep(kThread));
      engine(host).end_sleep(kThread, false);
      longest = std::max(longest, pause(host));
    }
    return longest;
  }
};

TEST_F(PoolSleep, Record_AfterTheThreadHasGoneToSleep_RingsOnce) {
  quieten();
  ASSERT_TRUE(engine(1).begin_sleep(kThread));
  EXPECT_EQ(1, sleepers(1));
  EXPECT_FALSE(is_rung(1));
  b.core().receives.push_back(64);
  a.send(1, 8);
  EXPECT_TRUE(is_rung(1));
  engine(1).end_sleep(kThread, true);
  EXPECT_EQ(0, sleepers(1));
  EXPECT_FALSE(is_rung(1));
  ASSERT_TRUE(done(a, 2));
  EXPECT_FALSE(is_rung(1)) << "nobody sleeps";
}

TEST_F(PoolSleep, Record_BeforeTheThreadSleeps_KeepsItAwake) {
  quieten();
  b.core().receives.push_back(64);
  a.send(1, 8);
  EXPECT_FALSE(engine(1).begin_sleep(kThread));
  EXPECT_EQ(0, sleepers(1));
  hosts[1]->turn();
  EXPECT_TRUE(engine(1).begin_sleep(kThread));
  engine(1).end_sleep(kThread, false);
}

TEST_F(PoolSleep, Answers_RingTheRequester) {
  quieten();
  b.core().receives.push_back(64);
  a.send(1, 8);
  ASSERT_TRUE(engine(0).begin_sleep(kThread));
  hosts[1]->turn();
  EXPECT_TRUE(is_rung(0));
  engine(0).end_sleep(kThread, true);
}

TEST_F(PoolSleep, RecordOfTheProcessToItself_WakesTheThread) {
  quieten();
  Pair one(*hosts[0], 0, 10, 11);
  Pair other(*hosts[0], 0, 11, 10);
  other.core().receives.assign(2, 64);
  one.send(1, 8);
  ASSERT_TRUE(done(one, 1));
  EXPECT_GT(longest_pause(0), Engine::kBellsNs) << "the channel to itself needs no look";
  ASSERT_TRUE(engine(0).begin_sleep(kThread));
  engine(0).poller().alarm().forget();
  one.send(2, 8);
  EXPECT_LE(engine(0).poller().wanted_at(), base::now_ns());
  engine(0).end_sleep(kThread, false);
  EXPECT_FALSE(engine(0).begin_sleep(kThread)) << "the record is there";
  ASSERT_TRUE(done(one, 2));
  engine(0).poller().alarm().forget();
  other.core().receives.push_back(64);
  one.send(3, 8);
  EXPECT_EQ(INT64_MAX, engine(0).poller().wanted_at()) << "nobody sleeps";
}

TEST_F(PoolSleep, Offer_BeforeTheThreadSleeps_IsAnswered) {
  quieten();
  ASSERT_TRUE(hosts[2]->pool.open_channel(engine(1).self()));
  EXPECT_FALSE(medium.has_offer(1, 2));
  EXPECT_TRUE(engine(1).begin_sleep(kThread));
  EXPECT_TRUE(medium.has_offer(1, 2));
  engine(1).end_sleep(kThread, false);
}

TEST_F(PoolSleep, Offer_AfterTheThreadHasGoneToSleep_WakesIt) {
  quieten();
  ASSERT_TRUE(engine(1).begin_sleep(kThread));
  ASSERT_TRUE(hosts[2]->pool.open_channel(engine(1).self()));
  EXPECT_TRUE(is_rung(1));
  engine(1).end_sleep(kThread, true);
}

TEST_F(PoolSleep, RecordWhoseQueuePairIsBusy_IsLookedAtAgainSoon) {
  quieten();
  b.core().receives.push_back(64);
  a.send(1, 8);
  ASSERT_TRUE(b.core().try_enter());
  EXPECT_LE(pause(1), Engine::kLongestPauseNs);
  EXPECT_TRUE(engine(1).begin_sleep(kThread)) << "it would turn round and round until the queue pair is left";
  engine(1).end_sleep(kThread, false);
  b.core().leave();
  ASSERT_TRUE(done(a, 2));
}

TEST_F(PoolSleep, NothingToDo_OnlyTheHeartbeatWakesTheThread) {
  quieten();
  EXPECT_GT(longest_pause(0), Engine::kBellsNs);
  EXPECT_TRUE(engine(0).wakes());
}

TEST_F(PoolSleep, ProcessOfThePoolWithoutADoorbell_BellsAreLookedAtOften) {
  quieten();
  hosts[0]->pool.has_silent_neighbour = true;
  longest_pause(0);  // the next heartbeat notices it
  EXPECT_LE(longest_pause(0), Engine::kBellsNs);
}

TEST_F(PoolSleep, ProgramThatPolls_BellsAreLookedAtOften) {
  quieten();
  const auto longest_until = [this](int beats) {
    int64_t longest = 0;
    const int64_t limit = base::now_ns() + INT64_C(10'000'000'000);
    while (hosts[0]->pool.beats < beats && base::now_ns() < limit) {
      engine(0).take_turn(progress::Receiver::kPoller);
      longest = std::max(longest, pause(0));
    }
    return longest;
  };
  longest_until(hosts[0]->pool.beats + 1);
  EXPECT_LE(longest_until(hosts[0]->pool.beats + 2), Engine::kBellsNs);
}

TEST_F(PoolSleep, ProgramThatPolls_TheThreadLooksAndIsNotRung) {
  quieten();
  engine(0).take_turn(progress::Receiver::kPoller);
  EXPECT_LE(pause(0), Engine::kLongestPauseNs);
  EXPECT_FALSE(engine(0).wakes());
  ASSERT_TRUE(engine(0).begin_sleep(kThread));
  EXPECT_EQ(0, sleepers(0));
  ASSERT_TRUE(engine(0).begin_sleep(kSleeper));
  EXPECT_EQ(1, sleepers(0)) << "a thread of the program looks at nothing in its sleep";
  engine(0).end_sleep(kSleeper, false);
  engine(0).end_sleep(kThread, false);
  EXPECT_EQ(0, sleepers(0));
  // It has not polled for long.
  const int64_t later = base::now_ns() + Engine::kActiveNs;
  ASSERT_TRUE(until([&] { return base::now_ns() >= later; }));
  hosts[0]->turn();
  EXPECT_TRUE(engine(0).wakes());
  ASSERT_TRUE(engine(0).begin_sleep(kThread));
  EXPECT_EQ(1, sleepers(0));
  engine(0).end_sleep(kThread, false);
}

TEST_F(PoolSleep, RecordsThatAPollLeaves_AreTakenByTheThreadSoon) {
  quieten();
  b.core().receives.assign(10, 64);
  for (uint64_t i = 0; i < 10; ++i) {
    a.send(i, 8);
    hosts[1]->turn();  // an answer for each
  }
  engine(0).poller().alarm().forget();
  const int64_t before = base::now_ns();
  engine(0).take_turn(progress::Receiver::kPoller);
  ASSERT_LT(a.core().done.size(), 11u);
  EXPECT_LT(engine(0).poller().wanted_at(), before + 1'000'000'000) << "nobody rings for them again";
}

TEST_F(PoolSleep, QueuePairThatWaitsForRoom_IsLookedAtSoon) {
  quieten();
  engine(0).poller().alarm().forget();
  for (uint64_t id = 0; id < 60; ++id) a.send(id, 8000);  // the ring is full after a few
  EXPECT_LT(engine(0).poller().wanted_at(), base::now_ns() + Engine::kLongestPauseNs);
}

}  // namespace
}  // namespace nupa::pool::test
