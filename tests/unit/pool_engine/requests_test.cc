// SPDX-License-Identifier: Apache-2.0
/// Requests of connected queue pairs over a pool.
#include <cstring>
#include <random>

#include "world.h"

namespace nupa::pool::test {
namespace {

class PoolRequests : public PoolEngine {
 protected:
  Pair a{*hosts[0], 1, 1, 2};
  Pair b{*hosts[1], 0, 2, 1};

  void fill(Pair& pair, uint64_t offset, size_t length) {
    const auto bytes = pattern_bytes(length);
    if (length > 0) std::memcpy(pair.core().memory.data() + offset, bytes.data(), length);
  }
  bool holds_pattern(Pair& pair, uint64_t offset, size_t length) {
    const auto bytes = pattern_bytes(length);
    return length == 0 || std::memcmp(pair.core().memory.data() + offset, bytes.data(), length) == 0;
  }
  SendWr write(uint64_t offset) {
    SendWr wr;
    wr.opcode = Opcode::kRdmaWrite;
    wr.remote_addr = kBase + offset;
    wr.rkey = kKey;
    return wr;
  }
  SendWr read(uint64_t id, uint64_t offset) {
    SendWr wr = write(offset);
    wr.wr_id = id;
    wr.opcode = Opcode::kRdmaRead;
    return wr;
  }
};

TEST_F(PoolRequests, Send_AnyLength_FillsTheReceive) {
  for (const uint32_t length : {0u, 1u, 45u, 46u, 8192u, 8193u, 100'000u}) {
    fill(a, 0, length);
    b.core().receives.push_back(length + 10);
    a.core().done.clear();
    b.core().received.clear();
    a.send(7, length);
    ASSERT_TRUE(done(a, 1)) << length;
    EXPECT_EQ(WcStatus::kSuccess, a.core().done[0].status);
    EXPECT_EQ(length, a.core().done[0].length);
    ASSERT_EQ(1u, b.core().received.size());
    const auto bytes = pattern_bytes(length);
    EXPECT_TRUE(length == 0 || std::memcmp(bytes.data(), b.core().received[0].bytes.data(), length) == 0) << length;
    EXPECT_EQ(length, b.core().received[0].message.byte_len);
    EXPECT_EQ(a.context.host.number(), b.core().received[0].message.src_qp);
  }
  EXPECT_EQ(1, b.core().established_count);
}

TEST_F(PoolRequests, Send_EightBytes_IsOneRecordOfOneLine) {
  b.core().receives = {64};
  ASSERT_TRUE(until([&] { return hosts[0]->pool.channels[1]->is_open(); }));
  const uint64_t before = hosts[0]->pool.channels[1]->published;
  a.send(1, 8);
  EXPECT_EQ(before + 1, hosts[0]->pool.channels[1]->published);
  ASSERT_TRUE(done(a, 1));
}

TEST_F(PoolRequests, Poll_TakesAnAcknowledgement_NothingWakesTheThread) {
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

TEST_F(PoolRequests, Poll_TakesASend_TheThreadAcknowledgesItAfterAMillisecond) {
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

TEST_F(PoolRequests, Read_AtATarget_IsPartOfAStreamThatWakesNothing) {
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

TEST_F(PoolRequests, Payload_ThatGoesOnAtTheBeginningOfTheRing_ArrivesWhole) {
  // Records of 126 lines in a ring of 1,024.
  constexpr uint32_t kLength = 125 * kLineBytes - 3;
  for (uint64_t i = 0; i < 40; ++i) {
    fill(a, 0, kLength);
    fill(b, 20'000, kLength);
    std::fill_n(b.core().memory.begin(), kLength, std::byte{0});
    std::fill_n(a.core().memory.begin() + 20'000, kLength, std::byte{0});
    a.core().done.clear();
    b.core().received.clear();
    b.core().receives = {kLength};
    a.post(write(0), 0, kLength);
    a.send(2, kLength);
    a.post(read(3, 20'000), 20'000, kLength);
    ASSERT_TRUE(done(a, 3));
    EXPECT_TRUE(holds_pattern(b, 0, kLength)) << i;
    EXPECT_TRUE(holds_pattern(a, 20'000, kLength)) << i;
    const auto bytes = pattern_bytes(kLength);
    EXPECT_EQ(0, std::memcmp(bytes.data(), b.core().received.at(0).bytes.data(), kLength)) << i;
  }
}

TEST_F(PoolRequests, Send_WithImmediateAndInvalidation_ReachTheReceive) {
  b.core().receives = {64, 64};
  SendWr wr;
  wr.opcode = Opcode::kSendWithImm;
  wr.imm_or_rkey = 77;
  wr.flags = send_flag::kSolicited;
  a.post(wr, 0, 8);
  wr.opcode = Opcode::kSendWithInv;
  wr.imm_or_rkey = 88;
  a.post(wr, 0, 8);
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(wc_flag::kWithImm, b.core().received[0].message.wc_flags);
  EXPECT_EQ(77u, b.core().received[0].message.imm_data);
  EXPECT_TRUE(b.core().received[0].message.solicited);
  EXPECT_EQ(wc_flag::kWithInv, b.core().received[1].message.wc_flags);
  EXPECT_EQ(std::vector<uint32_t>{88}, b.core().invalidated);
}

TEST_F(PoolRequests, Write_AnyLength_ArrivesWithoutReceive) {
  for (const uint32_t length : {0u, 33u, 34u, 200'000u}) {
    fill(a, 0, length);
    std::fill(b.core().memory.begin(), b.core().memory.end(), std::byte{0});
    a.core().done.clear();
    a.post(write(5), 0, length);
    ASSERT_TRUE(done(a, 1)) << length;
    EXPECT_EQ(WcStatus::kSuccess, a.core().done[0].status);
    EXPECT_TRUE(holds_pattern(b, 5, length)) << length;
  }
  EXPECT_TRUE(b.core().received.empty());
}

TEST_F(PoolRequests, WriteWithImmediate_OfSeveralParts_TakesOneReceive) {
  fill(a, 0, 50'000);
  b.core().receives = {64};
  SendWr wr = write(0);
  wr.opcode = Opcode::kRdmaWriteWithImm;
  wr.imm_or_rkey = 5;
  a.post(wr, 0, 50'000);
  ASSERT_TRUE(done(a, 1));
  ASSERT_EQ(1u, b.core().received.size());
  EXPECT_EQ(WcOpcode::kRecvRdmaWithImm, b.core().received[0].message.opcode);
  EXPECT_EQ(50'000u, b.core().received[0].message.byte_len);
  EXPECT_TRUE(holds_pattern(b, 0, 50'000));
}

TEST_F(PoolRequests, Read_AnyLength_FillsTheList) {
  for (const uint32_t length : {0u, 8u, 45u, 46u, 8192u, 150'000u}) {
    fill(b, 3, length);
    std::fill(a.core().memory.begin(), a.core().memory.end(), std::byte{0});
    a.core().done.clear();
    a.post(read(1, 3), 0, length);
    ASSERT_TRUE(done(a, 1)) << length;
    EXPECT_EQ(WcStatus::kSuccess, a.core().done[0].status);
    EXPECT_TRUE(holds_pattern(a, 0, length)) << length;
  }
}

TEST_F(PoolRequests, Atomics_ReturnWhatTheyFound) {
  uint64_t word = 40;
  std::memcpy(b.core().memory.data() + 8, &word, 8);
  SendWr wr = write(8);
  wr.opcode = Opcode::kFetchAdd;
  wr.compare_add = 2;
  a.post(wr, 0, 8);
  wr.opcode = Opcode::kCompareSwap;
  wr.compare_add = 42;
  wr.swap = 7;
  a.post(wr, 8, 8);
  wr.opcode = Opcode::kAtomicWrite;
  wr.compare_add = 99;
  a.post(wr);
  ASSERT_TRUE(done(a, 3));
  for (const auto& one : a.core().done) EXPECT_EQ(WcStatus::kSuccess, one.status);
  uint64_t found[2];
  std::memcpy(found, a.core().memory.data(), 16);
  EXPECT_EQ(40u, found[0]);
  EXPECT_EQ(42u, found[1]);
  std::memcpy(&word, b.core().memory.data() + 8, 8);
  EXPECT_EQ(99u, word);
}

TEST_F(PoolRequests, AtomicWrite_OfAnotherLength_IsRefused) {
  SendWr wr = write(8);
  wr.opcode = Opcode::kAtomicWrite;
  a.post(wr, 0, 7);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kRemInvReqErr, a.core().done[0].status);
}

TEST_F(PoolRequests, Inline_DataIsCopiedAtPost) {
  b.core().receives = {64};
  std::string text = "hello";
  Sge sge{reinterpret_cast<uint64_t>(text.data()), 5, 0};
  SendWr wr;
  wr.flags = send_flag::kInline;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  a.post(wr);
  text = "-----";
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ("hello", b.core().received[0].bytes);
}

TEST_F(PoolRequests, LocalRequests_RunInTheirTurn) {
  b.core().receives = {64, 64};
  SendWr local;
  local.opcode = Opcode::kLocalInv;
  local.wr_id = 2;
  a.send(1, 8);
  a.post(local);
  a.send(3, 8);
  ASSERT_TRUE(done(a, 3));
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(i + 1, a.core().done[i].wr_id);
  EXPECT_EQ(std::vector<uint64_t>{2}, a.core().locals);
}

TEST_F(PoolRequests, Fence_WaitsForTheReadBefore) {
  b.core().receives = {64};
  b.core().stopped = true;  // the READ's memory comes later
  a.post(read(1, 0), 0, 8);
  SendWr wr;
  wr.wr_id = 2;
  wr.flags = send_flag::kFence;
  a.post(wr, 0, 8);
  for (int i = 0; i < 50; ++i) turns();
  EXPECT_TRUE(b.core().received.empty());
  EXPECT_TRUE(a.core().done.empty());
  b.core().stopped = false;
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(1u, b.core().received.size());
}

TEST_F(PoolRequests, ReadDepth_AtItsLimit_HoldsBackTheNextRead) {
  Pair c(*hosts[0], 1, 5, 6, QpType::kRc, [](QpAttr& attr) { attr.max_rd_atomic = 2; });
  Pair d(*hosts[1], 0, 6, 5, QpType::kRc, [](QpAttr& attr) { attr.max_dest_rd_atomic = 2; });
  d.core().stopped = true;
  for (uint64_t i = 0; i < 5; ++i) c.post(read(i, 0), 0, 8);
  for (int i = 0; i < 50; ++i) turns();
  EXPECT_TRUE(c.core().done.empty());
  d.core().stopped = false;
  ASSERT_TRUE(done(c, 5));
  for (const auto& one : c.core().done) EXPECT_EQ(WcStatus::kSuccess, one.status);
}

TEST_F(PoolRequests, ReadDepth_BeyondTheTargets_IsRefused) {
  Pair c(*hosts[0], 1, 5, 6);
  Pair d(*hosts[1], 0, 6, 5, QpType::kRc, [](QpAttr& attr) { attr.max_dest_rd_atomic = 1; });
  d.core().stopped = true;
  c.post(read(1, 0), 0, 8);
  c.post(read(2, 0), 0, 8);
  for (int i = 0; i < 50; ++i) turns();
  d.core().stopped = false;
  ASSERT_TRUE(done(c, 2));
  EXPECT_EQ(WcStatus::kSuccess, c.core().done[0].status);
  EXPECT_EQ(WcStatus::kRemInvReqErr, c.core().done[1].status);
}

TEST_F(PoolRequests, Refusals_EndTheRequestWithTheirStatus) {
  const auto refused = [this](auto&& break_rule, auto&& post) {
    static uint32_t index = 10;
    ++index;
    Pair c(*hosts[0], 1, index, index);
    Pair d(*hosts[1], 0, index, index);
    break_rule(d.core());
    c.send(1, 0);  // a request before the fault succeeds, if a receive is posted for it
    post(c);
    c.send(3, 8);
    EXPECT_TRUE(done(c, 3));
    if (c.core().done.size() != 3) return WcStatus::kGeneralErr;
    EXPECT_EQ(WcStatus::kSuccess, c.core().done[0].status);
    EXPECT_EQ(WcStatus::kWrFlushErr, c.core().done[2].status);
    EXPECT_EQ(1u, d.core().refusals.size());
    return c.core().done[1].status;
  };
  const auto sends = [](Pair& pair) { pair.send(2, 8); };
  EXPECT_EQ(WcStatus::kRemInvReqErr, refused([](RecordingHost& host) { host.receives = {64, 4}; }, sends));
  EXPECT_EQ(WcStatus::kRemAccessErr, refused(
                                         [](RecordingHost& host) {
                                           host.receives = {64, 64}, host.rights = 0;
                                         },
                                         [this](Pair& pair) { pair.post(write(0), 0, 8); }));
  EXPECT_EQ(WcStatus::kRemAccessErr, refused(
                                         [](RecordingHost& host) {
                                           host.receives = {64, 64}, host.rights = 0;
                                         },
                                         [this](Pair& pair) { pair.post(read(2, 0), 0, 8); }));
  EXPECT_EQ(WcStatus::kRemOpErr, refused(
                                     [](RecordingHost& host) {
                                       host.receives = {64, 64}, host.places = false;
                                     },
                                     sends));
  EXPECT_EQ(WcStatus::kRemAccessErr, refused(
                                         [](RecordingHost& host) {
                                           host.receives = {64, 64};
                                           host.invalidates = false;
                                         },
                                         [](Pair& pair) {
                                           SendWr wr;
                                           wr.opcode = Opcode::kSendWithInv;
                                           pair.post(wr, 0, 8);
                                         }));
  EXPECT_EQ(WcStatus::kRemInvReqErr, refused([](RecordingHost& host) { host.receives = {64}; },
                                             [this](Pair& pair) {
                                               SendWr wr = write(4);  // unaligned
                                               wr.opcode = Opcode::kFetchAdd;
                                               pair.post(wr, 0, 8);
                                             }));
}

TEST_F(PoolRequests, LocalFault_EndsInItsTurn) {
  b.core().receives = {64};
  a.send(1, 8);
  SendWr wr;
  wr.wr_id = 2;
  a.post(wr, 0, 8, WcStatus::kLocProtErr);
  a.send(3, 8);
  ASSERT_TRUE(done(a, 3));
  EXPECT_EQ(WcStatus::kSuccess, a.core().done[0].status);
  EXPECT_EQ(WcStatus::kLocProtErr, a.core().done[1].status);
  EXPECT_EQ(WcStatus::kWrFlushErr, a.core().done[2].status);
  EXPECT_EQ(1u, b.core().received.size());
}

TEST_F(PoolRequests, NotReady_ReceiveComesLater_SendArrivesOnce) {
  a.send(1, 20'000);
  a.send(2, 8);
  ASSERT_TRUE(until([&] { return a.context.shared.counters.rnr.load() > 0; }));
  EXPECT_TRUE(a.core().done.empty());
  b.core().receives = {30'000, 64};
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(2u, b.core().received.size());
  EXPECT_EQ(20'000u, b.core().received[0].message.byte_len);
}

TEST_F(PoolRequests, NotReady_AfterTheRetries_Fails) {
  a.attr.rnr_retry = 2;
  a.endpoint->set_attributes(a.attr);
  a.send(1, 8);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kRnrRetryExcErr, a.core().done[0].status);
}

TEST_F(PoolRequests, NotReady_HoldsUpNoOtherQueuePair) {
  Pair c(*hosts[0], 1, 5, 6);
  Pair d(*hosts[1], 0, 6, 5);
  d.core().receives = {64, 64};
  b.core().rnr_code = 31;  // 0.5 s
  a.send(1, 8);
  c.send(1, 8);
  c.send(2, 8);
  ASSERT_TRUE(done(c, 2));
  EXPECT_TRUE(a.core().done.empty());
}

TEST_F(PoolRequests, NotReady_LastPartOfAWrite_ContinuesWithThatPart) {
  fill(a, 0, 50'000);
  SendWr wr = write(0);
  wr.opcode = Opcode::kRdmaWriteWithImm;
  a.post(wr, 0, 50'000);
  ASSERT_TRUE(until([&] { return a.context.shared.counters.rnr.load() > 0; }));
  b.core().receives = {64};
  const uint64_t before = hosts[0]->pool.channels[1]->published;
  ASSERT_TRUE(done(a, 1));
  EXPECT_LE(hosts[0]->pool.channels[1]->published - before, 3u);
  EXPECT_TRUE(holds_pattern(b, 0, 50'000));
}

TEST_F(PoolRequests, MemoryOfAnotherProcess_IsWaitedFor) {
  b.core().receives = {30'000};
  b.core().stopped = true;
  fill(a, 0, 20'000);
  a.send(1, 20'000);
  for (int i = 0; i < 50; ++i) turns();
  EXPECT_TRUE(a.core().done.empty());
  b.core().stopped = false;
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kSuccess, a.core().done[0].status);
  const auto bytes = pattern_bytes(20'000);
  EXPECT_EQ(0, std::memcmp(bytes.data(), b.core().received[0].bytes.data(), bytes.size()));
}

TEST_F(PoolRequests, AbsentPeer_ComesLater_RequestsSucceed) {
  Pair c(*hosts[0], 1, 5, 6);
  for (uint64_t i = 0; i < 5; ++i) c.send(i, 8);
  for (int i = 0; i < 100; ++i) turns();
  EXPECT_TRUE(c.core().done.empty());
  Pair d(*hosts[1], 0, 6, 5);
  d.core().receives.assign(5, 64);
  ASSERT_TRUE(done(c, 5));
  EXPECT_EQ(5u, d.core().received.size());
}

TEST_F(PoolRequests, AbsentPeer_BeyondTheLimits_Fails) {
  Pair c(*hosts[0], 1, 5, 6, QpType::kRc, [](QpAttr& attr) { attr.timeout = 8, attr.retry_cnt = 1; });
  const int64_t began = base::now_ns();
  c.send(1, 8);
  c.send(2, 8);
  ASSERT_TRUE(done(c, 2));
  EXPECT_EQ(WcStatus::kRetryExcErr, c.core().done[0].status);
  EXPECT_EQ(WcStatus::kWrFlushErr, c.core().done[1].status);
  EXPECT_GE(base::now_ns() - began, core::retry_limit_ns(8, 1));
}

TEST_F(PoolRequests, PeerOfAnotherLife_IsNotTaken) {
  Pair c(*hosts[0], 1, 5, 6, QpType::kRc, [](QpAttr& attr) { attr.timeout = 8, attr.retry_cnt = 1; });
  Pair d(*hosts[1], 0, 6, 5, QpType::kRc, [](QpAttr& attr) { attr.rq_psn = 5; });
  d.core().receives = {64};
  c.send(1, 8);
  ASSERT_TRUE(done(c, 1));
  EXPECT_EQ(WcStatus::kRetryExcErr, c.core().done[0].status);
  EXPECT_TRUE(d.core().received.empty());
}

TEST_F(PoolRequests, RecordsOfAnotherQueuePair_AreNotTaken) {
  Pair c(*hosts[0], 1, 5, 2, QpType::kRc, [](QpAttr& attr) { attr.timeout = 8, attr.retry_cnt = 0; });
  b.core().receives = {64};
  c.send(1, 8);  // to b, which is connected to a
  ASSERT_TRUE(done(c, 1));
  EXPECT_EQ(WcStatus::kRetryExcErr, c.core().done[0].status);
  EXPECT_TRUE(b.core().received.empty());
}

TEST_F(PoolRequests, Pause_BegunRequestsEnd_OthersWait) {
  b.core().receives = {64, 64};
  b.core().stopped = true;
  a.send(1, 8);
  turns();
  ASSERT_TRUE(a.core().try_enter());
  a.endpoint->pause(true);
  EXPECT_FALSE(a.endpoint->drained());
  a.core().leave();
  a.send(2, 8);
  b.core().stopped = false;
  ASSERT_TRUE(done(a, 1));
  EXPECT_TRUE(a.endpoint->drained());
  for (int i = 0; i < 50; ++i) turns();
  EXPECT_EQ(1u, a.core().done.size());
  ASSERT_TRUE(a.core().try_enter());
  a.endpoint->pause(false);
  a.core().leave();
  ASSERT_TRUE(done(a, 2));
}

TEST_F(PoolRequests, Flush_CompletesAllInOrder) {
  for (uint64_t i = 0; i < 3; ++i) a.send(i, 8);
  ASSERT_TRUE(a.core().try_enter());
  a.endpoint->flush();
  a.core().leave();
  ASSERT_EQ(3u, a.core().done.size());
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(i, a.core().done[i].wr_id);
  for (int i = 0; i < 50; ++i) turns();
  EXPECT_EQ(3u, a.core().done.size());
}

TEST_F(PoolRequests, Stop_RefusalThatIsDue_StillLeaves) {
  b.core().rights = 0;
  a.post(write(0), 0, 8);
  ASSERT_TRUE(until([&] { return !b.core().refusals.empty(); }));
  ASSERT_TRUE(b.core().try_enter());
  b.endpoint->stop();
  b.core().leave();
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kRemAccessErr, a.core().done[0].status);
}

TEST_F(PoolRequests, Acknowledgements_OfManyQueuePairs_ShareLines) {
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

TEST_F(PoolRequests, Reply_CarriesTheAcknowledgement) {
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

TEST_F(PoolRequests, OwnProcess_QueuePairsReachEachOther) {
  Pair c(*hosts[0], 0, 5, 6);
  Pair d(*hosts[0], 0, 6, 5);
  d.core().receives = {100'000};
  c.send(1, 50'000);
  ASSERT_TRUE(done(c, 1));
  EXPECT_EQ(50'000u, d.core().received[0].message.byte_len);
}

TEST_F(PoolRequests, UnreliableService_WithoutReceive_LosesTheMessage) {
  Pair c(*hosts[0], 1, 5, 6, QpType::kUc);
  Pair d(*hosts[1], 0, 6, 5, QpType::kUc);
  c.send(1, 20'000);
  ASSERT_TRUE(done(c, 1));
  for (int i = 0; i < 20; ++i) turns();
  d.core().receives = {30'000};
  c.send(2, 20'000);
  ASSERT_TRUE(until([&] { return d.core().received.size() == 1; }));
  EXPECT_EQ(20'000u, d.core().received[0].message.byte_len);
  EXPECT_EQ(WcStatus::kSuccess, c.core().done[1].status);
}

TEST_F(PoolRequests, PeerEnded_AfterItsLastRecords_RequestsFail) {
  b.core().receives = {64};
  a.send(1, 8);
  ASSERT_TRUE(done(a, 1));
  a.send(2, 8);  // no receive: it waits
  hosts[1]->pool.leave();
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(WcStatus::kRetryExcErr, a.core().done[1].status);
  EXPECT_TRUE(until([&] { return hosts[0]->pool.closed == 1; }));
}

TEST_F(PoolRequests, PeerEnded_QueuePairWithoutRequests_FailsAtTheNextOne) {
  b.core().receives = {64};
  a.send(1, 8);
  ASSERT_TRUE(done(a, 1));
  hosts[1]->pool.leave();
  ASSERT_TRUE(until([&] { return hosts[0]->pool.closed == 1; }));
  EXPECT_EQ(1u, a.core().done.size());
  a.send(2, 8);
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(WcStatus::kRetryExcErr, a.core().done[1].status);
}

TEST_F(PoolRequests, PeerEnded_RecordsBeforeItsEnd_Count) {
  a.core().receives = {64};
  ASSERT_TRUE(until([&] { return hosts[1]->pool.channels[0]->is_open(); }));
  for (int i = 0; i < 5; ++i) turns();
  b.send(1, 8);
  hosts[1]->pool.leave();
  ASSERT_TRUE(until([&] { return hosts[0]->pool.closed == 1; }));
  EXPECT_EQ(1u, a.core().received.size());
}

TEST_F(PoolRequests, SilentPeer_RequestsFail_AndItMayComeBack) {
  medium.find(hosts[1]->engine->self())->life = Life::kSilent;
  a.send(1, 8);
  ASSERT_TRUE(until([&] {
    hosts[0]->turn();
    return a.core().done.size() == 1;
  }));
  EXPECT_EQ(WcStatus::kRetryExcErr, a.core().done[0].status);
  EXPECT_EQ(0, hosts[0]->pool.closed);
  medium.find(hosts[1]->engine->self())->life = Life::kAlive;
  Pair c(*hosts[0], 1, 5, 6);
  Pair d(*hosts[1], 0, 6, 5);
  d.core().receives = {64};
  c.send(1, 8);
  ASSERT_TRUE(done(c, 1));
  EXPECT_EQ(WcStatus::kSuccess, c.core().done[0].status);
}

TEST_F(PoolRequests, Garbage_OfEachKind_EndsTheQueuePairs) {
  for (uint16_t kind = 0; kind < 32; ++kind) {
    Medium own(kLines);
    Host here(own, 0);
    Host there(own, 1);
    Pair c(here, 1, 5, 6);
    Pair d(there, 0, 6, 5);
    const auto both = [&](auto&& condition) {
      for (int i = 0; i < 100'000 && !condition(); ++i) here.turn(), there.turn();
      return condition();
    };
    ASSERT_TRUE(both([&] { return here.pool.channels[1] != nullptr && here.pool.channels[1]->is_open(); }));
    d.send(1, 8);  // waits for a receive
    Header header;
    header.tag = static_cast<uint16_t>(kind | 31u << 5 | 63u << 10);
    std::memset(header.bytes, 0xff, sizeof header.bytes);
    here.pool.channels[1]->publish(header);
    ASSERT_TRUE(both([&] { return d.core().done.size() == 1; })) << kind;
    EXPECT_EQ(WcStatus::kRetryExcErr, d.core().done[0].status);
    ASSERT_FALSE(d.core().refusals.empty());
    EXPECT_EQ(EventType::kQpFatal, d.core().refusals[0]);
    EXPECT_EQ(1, there.pool.closed);
  }
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
