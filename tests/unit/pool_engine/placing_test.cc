// SPDX-License-Identifier: Apache-2.0
/// RDMA WRITEs into memory of the target that lies in the pool: the requester places them itself.
#include <thread>

#include "requests.h"
#include "transport/pool/lent_memory.h"

namespace nupa::pool::test {
namespace {

constexpr uint32_t kLong = 20'000;
constexpr uint64_t kBytesOfTarget = roce::test::kMemoryBytes;

class PoolPlacing : public PoolRequests {
 protected:
  PoolPlacing() { medium.blocks[1] = b.core().memory; }
  /// So that the ends of the queue pairs wait for nobody.
  void TearDown() override {
    for (const auto& host : hosts) host->engine->grants().ask_back({});
    EXPECT_TRUE(until([&] {
      return std::none_of(hosts.begin(), hosts.end(),
                          [](const auto& host) { return host->engine->grants().awaits({}); });
    }));
  }

  FakeChannel& channel() { return *hosts[0]->pool.channels[1]; }
  Grants& grants() { return hosts[1]->engine->grants(); }
  void post_write(uint64_t id, uint64_t offset, uint32_t length, uint32_t rkey = kKey) {
    SendWr wr = write(offset);
    wr.wr_id = id;
    wr.rkey = rkey;
    a.post(wr, 0, length);
  }
  /// The target has granted its region, and the requester has it.
  void get_grant() {
    fill(a, 0, kLong);
    post_write(0, 0, kLong);
    ASSERT_TRUE(done(a, 1));
    EXPECT_EQ(0u, channel().placed);
    post_write(0, 0, kLong);
    ASSERT_TRUE(done(a, 2));
    ASSERT_EQ(kLong, channel().placed);
    a.core().done.clear();
    channel().placed = 0;
    clear_target();
  }
  void clear_target() { std::fill(b.core().memory.begin(), b.core().memory.end(), std::byte{0}); }
  bool is_target_clear() {
    return std::all_of(b.core().memory.begin(), b.core().memory.end(),
                       [](std::byte each) { return each == std::byte{0}; });
  }
};

TEST_F(PoolPlacing, Write_OfAnyLength_ArrivesWhole) {
  get_grant();
  for (const uint32_t length : {4097u, 8192u, 8193u, 100'003u, 400'000u}) {
    fill(a, 0, length);
    clear_target();
    a.core().done.clear();
    channel().placed = 0;
    post_write(7, 5, length);
    ASSERT_TRUE(done(a, 1)) << length;
    EXPECT_EQ(WcStatus::kSuccess, a.core().done[0].status);
    EXPECT_EQ(length, a.core().done[0].length);
    EXPECT_EQ(length, channel().placed);
    EXPECT_TRUE(holds_pattern(b, 5, length)) << length;
  }
}

TEST_F(PoolPlacing, Write_OfOnePacket_GoesThroughTheRing) {
  get_grant();
  fill(a, 0, 4096);
  post_write(1, 0, 4096);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(0u, channel().placed);
  EXPECT_TRUE(holds_pattern(b, 0, 4096));
}

TEST_F(PoolPlacing, MemoryThatIsNotInThePool_IsNotGranted) {
  medium.blocks.clear();
  for (uint64_t i = 0; i < 3; ++i) post_write(i, 0, kLong);
  ASSERT_TRUE(done(a, 3));
  EXPECT_EQ(0u, channel().placed);
  EXPECT_FALSE(grants().any());
}

TEST_F(PoolPlacing, UnreliableService_HasNoAnswers_AndPlacesNothing) {
  Pair c(*hosts[0], 1, 5, 6, QpType::kUc);
  Pair d(*hosts[1], 0, 6, 5, QpType::kUc);
  medium.blocks[1] = d.core().memory;
  for (int i = 0; i < 3; ++i) {
    c.post(write(0), 0, kLong);
    for (int turn = 0; turn < 20; ++turn) turns();
  }
  EXPECT_EQ(3u, c.core().done.size());
  EXPECT_EQ(0u, channel().placed);
  EXPECT_FALSE(grants().any());
}

TEST_F(PoolPlacing, RangeBeyondTheRegion_NothingIsWritten) {
  get_grant();
  post_write(1, kBytesOfTarget - kLong + 1, kLong);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kRemAccessErr, a.core().done[0].status);
  EXPECT_EQ(0u, channel().placed);
  EXPECT_TRUE(is_target_clear());
}

TEST_F(PoolPlacing, WrongKey_NothingIsWritten) {
  get_grant();
  post_write(1, 0, kLong, kKey + 1);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kRemAccessErr, a.core().done[0].status);
  EXPECT_EQ(0u, channel().placed);
  EXPECT_TRUE(is_target_clear());
}

TEST_F(PoolPlacing, WriteBehindASend_IsNotAheadOfIt) {
  get_grant();
  a.send(1, 8);  // no receive is posted
  post_write(2, 0, kLong);
  for (int i = 0; i < 20; ++i) turns();
  EXPECT_EQ(0u, channel().placed);
  EXPECT_TRUE(is_target_clear());
  b.core().receives = {64};
  ASSERT_TRUE(done(a, 2));
  EXPECT_TRUE(holds_pattern(b, 0, kLong));
  post_write(3, 0, kLong);
  ASSERT_TRUE(done(a, 3));
  EXPECT_EQ(kLong, channel().placed) << "nothing is before it";
}

TEST_F(PoolPlacing, WriteBehindAShortWrite_IsNotAheadOfIt) {
  get_grant();
  fill(a, 0, kLong);
  post_write(1, 0, 8);
  post_write(2, 0, kLong);
  EXPECT_EQ(0u, channel().placed) << "the short one lies in the ring";
  ASSERT_TRUE(done(a, 2));
  EXPECT_TRUE(holds_pattern(b, 0, kLong));
}

TEST_F(PoolPlacing, WritesInARow_ArePlacedWithoutAnAnswerBetweenThem) {
  get_grant();
  for (uint64_t i = 0; i < 5; ++i) post_write(i, i * kLong, kLong);
  EXPECT_EQ(5u * kLong, channel().placed);
  ASSERT_TRUE(done(a, 5));
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(i, a.core().done[i].wr_id);
    EXPECT_TRUE(holds_pattern(b, i * kLong, kLong));
  }
}

TEST_F(PoolPlacing, ImmediateWithoutReceive_ComesOnceAndHoldsBackTheNextWrite) {
  get_grant();
  SendWr wr = write(0);
  wr.opcode = Opcode::kRdmaWriteWithImm;
  wr.imm_or_rkey = 5;
  a.post(wr, 0, kLong);
  EXPECT_EQ(kLong, channel().placed);
  post_write(2, 2 * kLong, kLong);
  for (int i = 0; i < 20; ++i) turns();
  EXPECT_FALSE(holds_pattern(b, 2 * kLong, kLong)) << "the target has not taken the message before";
  // The program of the target writes here when it has taken the message: nothing is placed over it.
  b.core().receives = {64};
  ASSERT_TRUE(until([&] { return b.core().received.size() == 1; }));
  std::fill_n(b.core().memory.begin(), kLong, std::byte{0});
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(kLong, channel().placed) << "what is sent again goes through the ring";
  EXPECT_TRUE(std::all_of(b.core().memory.begin(), b.core().memory.begin() + kLong,
                          [](std::byte each) { return each == std::byte{0}; }));
  EXPECT_EQ(5u, b.core().received[0].message.imm_data);
  EXPECT_EQ(kLong, b.core().received[0].message.byte_len);
  EXPECT_TRUE(holds_pattern(b, 2 * kLong, kLong));
}

class PoolCredits : public PoolPlacing {
 protected:
  /// Posts a WRITE of kLong bytes with immediate data.
  void post_immediate(uint64_t id) {
    SendWr wr = write(id % 8 * kLong);
    wr.wr_id = id;
    wr.opcode = Opcode::kRdmaWriteWithImm;
    wr.imm_or_rkey = static_cast<uint32_t>(id);
    a.post(wr, 0, kLong);
  }
  void post_immediates(uint64_t from, uint64_t count) {
    for (uint64_t id = from; id < from + count; ++id) post_immediate(id);
  }
  /// The target reports its receives in the answer to this.
  void get_report() {
    post_write(99, 0, kLong);
    ASSERT_TRUE(done(a, 1));
    a.core().done.clear();
    channel().placed = 0;
  }
  uint64_t placed() { return channel().placed / kLong; }
};

TEST_F(PoolCredits, ImmediatesWithReceives_ArePlacedWithoutAnAnswerBetweenThem) {
  get_grant();
  b.core().receives = {64, 64, 64, 64};
  get_report();
  post_immediates(0, 4);
  EXPECT_EQ(4u, placed());
  ASSERT_TRUE(done(a, 4));
  ASSERT_EQ(4u, b.core().received.size());
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(i, b.core().received[i].message.imm_data);
    EXPECT_TRUE(holds_pattern(b, i * kLong, kLong));
  }
}

TEST_F(PoolCredits, ImmediateBehindTheLastReceive_HoldsBackTheNextOne) {
  get_grant();
  b.core().receives = {64, 64};
  get_report();
  post_immediates(0, 4);
  EXPECT_EQ(3u, placed()) << "nothing waits before the third";
  for (int i = 0; i < 20; ++i) turns();
  EXPECT_FALSE(holds_pattern(b, 3 * kLong, kLong));
  b.core().receives = {64, 64};
  ASSERT_TRUE(done(a, 4));
  EXPECT_EQ(4u, b.core().received.size());
}

TEST_F(PoolCredits, Report_CountsBehindTheMessagesThatItAcknowledges) {
  get_grant();
  b.core().receives = {64, 64};
  get_report();
  post_immediates(0, 2);
  b.core().receives.insert(b.core().receives.end(), 4, 64);
  ASSERT_TRUE(done(a, 2));
  channel().placed = 0;
  post_immediates(2, 4);
  EXPECT_EQ(4u, placed());
  ASSERT_TRUE(done(a, 6));
}

TEST_F(PoolCredits, ReceivesThatAreNotReported_AreNotCountedOn) {
  get_grant();
  b.core().receives = {64, 64};
  post_immediates(0, 2);
  EXPECT_EQ(1u, placed());
  ASSERT_TRUE(done(a, 2));
}

TEST_F(PoolCredits, ReceivesOfSeveralQueuePairs_AreNotReported) {
  get_grant();
  b.core().receives = {64, 64};
  b.core().shares_receives = true;
  get_report();
  post_immediates(0, 2);
  EXPECT_EQ(1u, placed());
  ASSERT_TRUE(done(a, 2));
}

TEST_F(PoolCredits, ReceivesOfSends_AreUsedUp) {
  get_grant();
  b.core().receives = {64, 64, 64};
  get_report();
  for (uint64_t id = 0; id < 3; ++id) a.send(id, 8);
  ASSERT_TRUE(done(a, 3));
  post_immediates(3, 2);
  EXPECT_EQ(1u, placed());
  b.core().receives = {64, 64};
  ASSERT_TRUE(done(a, 5));
}

TEST_F(PoolCredits, WritesWithoutImmediate_TakeNoReceive) {
  get_grant();
  b.core().receives = {64, 64};
  get_report();
  for (uint64_t id = 0; id < 3; ++id) post_write(id, 0, kLong);
  post_immediates(3, 3);
  EXPECT_EQ(6u, placed());
  b.core().receives.push_back(64);
  ASSERT_TRUE(done(a, 6));
}

TEST_F(PoolCredits, Report_InARecord) {
  get_grant();
  b.core().receives = {64, 64, 64};
  a.core().receives = {64};
  b.send(1, 8);
  ASSERT_TRUE(until([&] { return a.core().received.size() == 1; }));
  post_immediates(0, 3);
  EXPECT_EQ(3u, placed());
  ASSERT_TRUE(done(a, 3));
}

TEST_F(PoolPlacing, Revoked_TheNextWriteIsRefusedAndNothingIsWritten) {
  get_grant();
  b.core().key = kKey + 7;  // as ibv_dereg_mr: the key is invalid, then the grants are taken back
  std::thread owner([&] { hosts[1]->engine->take_back({.rkey = kKey, .qp_num = 0}); });
  EXPECT_TRUE(until([&] { return !grants().any(); }));
  owner.join();
  post_write(1, 0, kLong);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kRemAccessErr, a.core().done[0].status);
  EXPECT_EQ(0u, channel().placed);
  EXPECT_TRUE(is_target_clear());
}

TEST_F(PoolPlacing, Revoked_WhileAMessageIsPlaced_TheRestGoesThroughTheRing) {
  get_grant();
  fill(a, 0, 400'000);
  post_write(1, 0, 400'000);  // more than a queue pair writes before others have their turn
  const uint64_t before = channel().placed;
  EXPECT_LT(before, 400'000u);
  grants().ask_back({.rkey = kKey, .qp_num = 0});
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kSuccess, a.core().done[0].status);
  EXPECT_TRUE(holds_pattern(b, 0, 400'000));
}

TEST_F(PoolPlacing, Revoked_ForAnotherKeyOrQueuePair_Stays) {
  get_grant();
  EXPECT_FALSE(grants().ask_back({.rkey = kKey + 1, .qp_num = 0}));
  EXPECT_FALSE(grants().ask_back({.rkey = kKey, .qp_num = b.context.host.number() + 1}));
  post_write(1, 0, kLong);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(kLong, channel().placed);
}

TEST_F(PoolPlacing, PeerThatDoesNotAnswer_MemoryIsKeptUntilItHasEnded) {
  get_grant();
  Medium::Process& peer = *medium.find(hosts[0]->engine->self());
  peer.life = Life::kSilent;
  hosts[1]->turn();
  ASSERT_TRUE(until([&] {
    hosts[1]->turn();
    return grants().abandoned().size() == 1;
  }));
  // It returns although the peer takes no turn.
  hosts[1]->engine->take_back({.rkey = kKey, .qp_num = 0});
  EXPECT_TRUE(grants().any());
  hosts[1]->engine->free({.offset = 4096, .bytes = 4096, .at = nullptr});
  EXPECT_TRUE(hosts[1]->pool.freed.empty()) << "the peer may write there";
  hosts[1]->engine->free({.offset = kBytesOfTarget, .bytes = 4096, .at = nullptr});
  EXPECT_EQ(std::vector<uint64_t>{kBytesOfTarget}, hosts[1]->pool.freed);
  peer.life = Life::kEnded;
  EXPECT_TRUE(until([&] {
    hosts[1]->turn();
    return hosts[1]->pool.freed.size() == 2;
  }));
  EXPECT_FALSE(grants().any());
}

TEST_F(PoolPlacing, BorrowedBlock_IsFreedWhenItIsReturned) {
  hosts[1]->pool.has_borrowed_blocks = true;
  hosts[1]->engine->free({.offset = 4096, .bytes = 4096, .at = nullptr});
  EXPECT_TRUE(hosts[1]->pool.freed.empty());
  hosts[1]->pool.has_borrowed_blocks = false;
  EXPECT_TRUE(until([&] {
    hosts[1]->turn();
    return hosts[1]->pool.freed.size() == 1;
  }));
}

TEST_F(PoolPlacing, Allocation_HasTheRoomOfWhatWasFreedBefore) {
  hosts[1]->pool.has_borrowed_blocks = true;
  hosts[1]->engine->free({.offset = 4096, .bytes = 4096, .at = nullptr});
  hosts[1]->pool.has_borrowed_blocks = false;
  LentMemory memory(*hosts[1]->engine);
  const auto allocated = memory.allocate(4096);
  ASSERT_FALSE(allocated) << "the fake pool has no memory";
  EXPECT_EQ(allocated.error().code(), ENOMEM);
  EXPECT_EQ(hosts[1]->pool.freed.size(), 1u);
}

TEST_F(PoolPlacing, PeerThatComesBack_WhatItHasPlacedIsRefused) {
  get_grant();
  grants().ask_back({.rkey = kKey, .qp_num = 0});
  EXPECT_EQ(1u, grants().abandon(Grants::Which{.rkey = kKey, .qp_num = 0}));
  // It has not seen the question, and the key may name other memory by now.
  post_write(1, 0, kLong);
  EXPECT_EQ(kLong, channel().placed);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kRemAccessErr, a.core().done[0].status);
  EXPECT_TRUE(until([&] { return !grants().any(); })) << "it returns the grant at last";
}

TEST_F(PoolPlacing, PlacedWithoutAGrant_IsRefused) {
  ASSERT_TRUE(until([&] { return channel().is_open(); }));
  Record record;
  record.kind = RecordKind::kPlaced;
  record.flags = record_flag::kWhole;
  record.qp_num = b.context.host.number();
  record.source_qp = a.context.host.number();
  record.sequence = static_cast<uint16_t>(kFirstSequence);
  record.rkey = kKey;
  record.address = kBase;
  record.length = record.total = 5000;
  record.grant = 1;
  hosts[0]->engine->known_link(hosts[1]->engine->self())->place(record, nullptr, nullptr, 0);
  ASSERT_TRUE(until([&] { return b.core().refusals.size() == 1; }));
  EXPECT_EQ(EventType::kQpAccessErr, b.core().refusals[0]);
}

TEST_F(PoolPlacing, PlacedOutsideOfItsRegion_IsRefused) {
  get_grant();
  Record record;
  record.kind = RecordKind::kPlaced;
  record.flags = record_flag::kWhole;
  record.qp_num = b.context.host.number();
  record.source_qp = a.context.host.number();
  record.sequence = static_cast<uint16_t>(kFirstSequence + 2);
  record.rkey = kKey;
  record.address = kBase + kBytesOfTarget - 4999;
  record.length = record.total = 5000;
  record.grant = 1;
  hosts[0]->engine->known_link(hosts[1]->engine->self())->place(record, nullptr, nullptr, 0);
  ASSERT_TRUE(until([&] { return b.core().refusals.size() == 1; }));
  EXPECT_EQ(EventType::kQpAccessErr, b.core().refusals[0]);
}

TEST_F(PoolPlacing, GrantForAQueuePairThatIsNotThere_IsReturned) {
  ASSERT_TRUE(until([&] { return channel().is_open(); }));
  Grant grant{.peer = hosts[0]->engine->self(),
              .qp_num = b.context.host.number(),
              .requester = 77,
              .rkey = kKey,
              .address = kBase,
              .bytes = 4096,
              .offset = 0};
  hosts[1]->engine->grant(*hosts[1]->engine->known_link(hosts[0]->engine->self()), grant);
  EXPECT_TRUE(grants().any());
  EXPECT_TRUE(until([&] { return !grants().any(); }));
}

TEST_F(PoolPlacing, GrantOutsideOfTheHost_IsReturned) {
  ASSERT_TRUE(until([&] { return channel().is_open(); }));
  Grant grant{.peer = hosts[0]->engine->self(),
              .qp_num = b.context.host.number(),
              .requester = a.context.host.number(),
              .rkey = kKey,
              .address = kBase,
              .bytes = 1u << 30,
              .offset = 0};
  hosts[1]->engine->grant(*hosts[1]->engine->known_link(hosts[0]->engine->self()), grant);
  EXPECT_TRUE(until([&] { return !grants().any(); }));
}

TEST_F(PoolPlacing, QueuePairThatEnds_TakesItsGrantsBack) {
  get_grant();
  std::atomic<bool> has_begun{false}, has_ended{false};
  std::thread owner([&] {
    has_begun.store(true);
    b.endpoint->await_peer();
    has_ended.store(true);
  });
  while (!has_begun.load()) std::this_thread::yield();
  // It waits as long as the peer takes no turn.
  for (const int64_t limit = base::now_ns() + 20'000'000; base::now_ns() < limit;) std::this_thread::yield();
  EXPECT_FALSE(has_ended.load());
  EXPECT_TRUE(until([&] { return has_ended.load(); }));
  owner.join();
  EXPECT_FALSE(grants().any());
}

TEST_F(PoolPlacing, QueuePairThatFails_AsksForItsGrants) {
  get_grant();
  ASSERT_TRUE(b.core().try_enter());
  b.endpoint->stop();
  b.core().leave();
  EXPECT_TRUE(until([&] { return !grants().any(); }));
}

class PoolOfIncoherentCaches : public PoolEngine {};

TEST_F(PoolOfIncoherentCaches, WritesArePlacedByTheTargetAlone) {
  hosts.clear();
  for (uint16_t number = 0; number < 2; ++number) hosts.push_back(std::make_unique<Host>(medium, number, false));
  Pair a(*hosts[0], 1, 1, 2);
  Pair b(*hosts[1], 0, 2, 1);
  medium.blocks[1] = b.core().memory;
  SendWr wr;
  wr.opcode = Opcode::kRdmaWrite;
  wr.remote_addr = kBase;
  wr.rkey = kKey;
  for (int i = 0; i < 3; ++i) a.post(wr, 0, kLong);
  ASSERT_TRUE(done(a, 3));
  EXPECT_EQ(0u, hosts[0]->pool.channels[1]->placed);
  EXPECT_FALSE(hosts[1]->engine->grants().any());
}

}  // namespace
}  // namespace nupa::pool::test
