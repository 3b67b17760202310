// SPDX-License-Identifier: Apache-2.0
/// Turns of the engine: what a program that polls leaves to the thread, acknowledgements, and rings without room.
#include <random>

#include "requests.h"

namespace nupa::pool::test {
namespace {

class PoolTurns : public PoolRequests {};

TEST_F(PoolTurns, Send_EightBytes_IsOneRecordOfOneLine) {
  b.core().receives = {64};
  ASSERT_TRUE(until([&] { return hosts[0]->pool.channels[1]->is_open(); }));
  const uint64_t before = hosts[0]->pool.channels[1]->published;
  a.send(1, 8);
  EXPECT_EQ(before + 1, hosts[0]->pool.channels[1]->published);
  ASSERT_TRUE(done(a, 1));
}

TEST_F(PoolTurns, Poll_TakesAnAcknowledgement_NothingWakesTheThread) {
  b.core().receives = {64, 64};
  a.send(1, 8);
  ASSERT_TRUE(done(a, 1));
  a.send(2, 8);
  hosts[1]->turn();
  progress::AdaptivePoller& poller = hosts[0]->engine->poller();
  poller.alarm().forget();
  hosts[0]->engine->take_turn(progress::Receiver::kPoller);
  ASSERT_EQ(2u, a.core().done.size());
  EXPECT_EQ(INT64_MAX, poller.wanted_at());
}

TEST_F(PoolTurns, Poll_TakesASend_TheThreadAcknowledgesItAfterAMillisecond) {
  b.core().receives = {64, 64};
  a.send(1, 8);
  ASSERT_TRUE(done(a, 1));
  a.send(2, 8);
  progress::AdaptivePoller& poller = hosts[1]->engine->poller();
  poller.alarm().forget();
  const int64_t before = base::now_ns();
  hosts[1]->engine->take_turn(progress::Receiver::kPoller);
  ASSERT_EQ(2u, b.core().received.size());
  EXPECT_GE(poller.wanted_at(), before + 1'000'000);
  EXPECT_NE(INT64_MAX, poller.wanted_at());
}

TEST_F(PoolTurns, Read_AtATarget_IsPartOfAStreamThatWakesNothing) {
  b.core().receives = {64};
  a.send(1, 8);
  ASSERT_TRUE(done(a, 1));
  EXPECT_FALSE(hosts[1]->engine->streams());
  a.post(read(2, 0), 0, 8);
  ASSERT_TRUE(done(a, 2));
  EXPECT_TRUE(hosts[1]->engine->streams());
  EXPECT_FALSE(hosts[0]->engine->streams());
  EXPECT_FALSE(hosts[1]->engine->wakes());
}

TEST_F(PoolTurns, Acknowledgements_OfManyQueuePairs_ShareLines) {
  std::vector<std::unique_ptr<Pair>> froms, tos;
  for (uint32_t i = 100; i < 114; ++i) {
    froms.push_back(std::make_unique<Pair>(*hosts[0], 1, i, i));
    tos.push_back(std::make_unique<Pair>(*hosts[1], 0, i, i));
    tos.back()->core().receives = {64};
  }
  ASSERT_TRUE(until([&] { return hosts[1]->pool.channels[0]->is_open(); }));
  const uint64_t before = hosts[1]->pool.channels[0]->published;
  for (const auto& from : froms) from->send(1, 8);
  for (const auto& from : froms) ASSERT_TRUE(done(*from, 1));
  EXPECT_EQ(before + 2, hosts[1]->pool.channels[0]->published);
}

TEST_F(PoolTurns, Reply_CarriesTheAcknowledgement) {
  a.core().receives = {64};
  b.core().receives = {64};
  ASSERT_TRUE(until([&] { return hosts[1]->pool.channels[0]->is_open(); }));
  a.send(1, 8);
  // A polling program gets the record first.
  while (b.core().received.empty()) hosts[1]->engine->take_turn(progress::Receiver::kPoller);
  const uint64_t before = hosts[1]->pool.channels[0]->published;
  b.send(2, 8);
  ASSERT_TRUE(until([&] { return a.core().done.size() == 1 && a.core().received.size() == 1; }));
  EXPECT_EQ(before + 1, hosts[1]->pool.channels[0]->published);
}

class PoolSmallRing : public PoolEngine {
 protected:
  PoolSmallRing() : PoolEngine(64) {}
};

TEST_F(PoolSmallRing, BothDirectionsFull_NothingIsLost) {
  Pair a(*hosts[0], 1, 1, 2);
  Pair b(*hosts[1], 0, 2, 1);
  for (Pair* const each : {&a, &b}) {
    each->core().receives.assign(40, 30'000);
    for (uint64_t i = 0; i < 30; ++i) {
      SendWr wr;
      wr.wr_id = i;
      wr.opcode = i % 3 == 0 ? Opcode::kRdmaRead : i % 3 == 1 ? Opcode::kRdmaWrite : Opcode::kSend;
      wr.remote_addr = kBase + 100'000;
      wr.rkey = kKey;
      each->post(wr, 0, 20'000);
    }
  }
  ASSERT_TRUE(done(a, 30));
  ASSERT_TRUE(done(b, 30));
  for (Pair* const each : {&a, &b}) {
    for (const auto& one : each->core().done) EXPECT_EQ(WcStatus::kSuccess, one.status);
    EXPECT_EQ(10u, each->core().received.size());
  }
}

TEST_F(PoolSmallRing, ManyQueuePairs_AllHaveTheirTurn) {
  std::vector<std::unique_ptr<Pair>> froms, tos;
  for (uint32_t i = 0; i < 8; ++i) {
    froms.push_back(std::make_unique<Pair>(*hosts[0], 1, 100 + i, 100 + i));
    tos.push_back(std::make_unique<Pair>(*hosts[1], 0, 100 + i, 100 + i));
    tos.back()->core().receives.assign(10, 30'000);
  }
  for (uint64_t round = 0; round < 5; ++round)
    for (const auto& from : froms) from->send(round, round % 2 == 0 ? 8 : 20'000);
  for (const auto& from : froms) ASSERT_TRUE(done(*from, 5));
}

TEST_F(PoolSmallRing, RandomRequests_BySeed_KeepTheirOrder) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    Pair a(*hosts[0], 1, 200 + seed, 200 + seed);
    Pair b(*hosts[1], 0, 200 + seed, 200 + seed);
    b.core().rnr_code = 1;
    size_t posted = 0;
    std::vector<uint32_t> lengths;
    while (posted < 60 || a.core().done.size() < posted) {
      if (posted < 60 && posted - a.core().done.size() < 40 && random() % 3 == 0) {
        SendWr wr;
        wr.wr_id = posted++;
        const uint32_t choice = random() % 5;
        wr.opcode = choice == 0 ? Opcode::kRdmaRead : choice == 1 ? Opcode::kRdmaWrite : Opcode::kSend;
        wr.flags = random() % 4 == 0 ? send_flag::kFence : 0;
        wr.remote_addr = kBase;
        wr.rkey = kKey;
        const uint32_t length = random() % 2 == 0 ? random() % 100 : random() % 5000;
        if (wr.opcode == Opcode::kSend) lengths.push_back(length);
        a.post(wr, 8192, length);
      }
      if (random() % 4 == 0 && b.core().receives.size() < 3) b.core().receives.push_back(5000);
      hosts[random() % 2]->turn();
    }
    for (size_t i = 0; i < posted; ++i) {
      ASSERT_EQ(i, a.core().done[i].wr_id) << seed;
      ASSERT_EQ(WcStatus::kSuccess, a.core().done[i].status) << seed;
    }
    ASSERT_EQ(lengths.size(), b.core().received.size()) << seed;
    for (size_t i = 0; i < lengths.size(); ++i) ASSERT_EQ(lengths[i], b.core().received[i].message.byte_len) << seed;
  }
}

}  // namespace
}  // namespace nupa::pool::test
