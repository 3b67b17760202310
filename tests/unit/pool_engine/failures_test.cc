// SPDX-License-Identifier: Apache-2.0
/// Requests over a pool that the target refuses or cannot take yet, and peers that are absent, end or write garbage.
#include "requests.h"

namespace nupa::pool::test {
namespace {

class PoolFailures : public PoolRequests {};

TEST_F(PoolFailures, Refusals_EndTheRequestWithTheirStatus) {
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

TEST_F(PoolFailures, NotReady_ReceiveComesLater_SendArrivesOnce) {
  a.send(1, 20'000);
  a.send(2, 8);
  ASSERT_TRUE(until([&] { return a.context.shared.counters.rnr.load() > 0; }));
  EXPECT_TRUE(a.core().done.empty());
  b.core().receives = {30'000, 64};
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(2u, b.core().received.size());
  EXPECT_EQ(20'000u, b.core().received[0].message.byte_len);
  EXPECT_GE(b.context.statistics.port[shm::PortCount::kOutOfBuffer], 1u);
  EXPECT_EQ(a.context.statistics.port[shm::PortCount::kOutOfBuffer], 0u);
}

TEST_F(PoolFailures, NotReady_AfterTheRetries_Fails) {
  a.attr.rnr_retry = 2;
  a.endpoint->set_attributes(a.attr);
  a.send(1, 8);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kRnrRetryExcErr, a.core().done[0].status);
}

TEST_F(PoolFailures, NotReady_HoldsUpNoOtherQueuePair) {
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

TEST_F(PoolFailures, NotReady_LastPartOfAWrite_ContinuesWithThatPart) {
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

TEST_F(PoolFailures, MemoryOfAnotherProcess_IsWaitedFor) {
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

TEST_F(PoolFailures, AbsentPeer_ComesLater_RequestsSucceed) {
  Pair c(*hosts[0], 1, 5, 6);
  for (uint64_t i = 0; i < 5; ++i) c.send(i, 8);
  for (int i = 0; i < 100; ++i) turns();
  EXPECT_TRUE(c.core().done.empty());
  Pair d(*hosts[1], 0, 6, 5);
  d.core().receives.assign(5, 64);
  ASSERT_TRUE(done(c, 5));
  EXPECT_EQ(5u, d.core().received.size());
}

TEST_F(PoolFailures, AbsentPeer_BeyondTheLimits_Fails) {
  Pair c(*hosts[0], 1, 5, 6, QpType::kRc, [](QpAttr& attr) { attr.timeout = 8, attr.retry_cnt = 1; });
  const int64_t began = base::now_ns();
  c.send(1, 8);
  c.send(2, 8);
  ASSERT_TRUE(done(c, 2));
  EXPECT_EQ(WcStatus::kRetryExcErr, c.core().done[0].status);
  EXPECT_EQ(WcStatus::kWrFlushErr, c.core().done[1].status);
  EXPECT_GE(base::now_ns() - began, core::retry_limit_ns(8, 1));
}

TEST_F(PoolFailures, AbsentPeerOfAnUnreliableConnection_MessagesAreLost) {
  constexpr uint16_t kNobody = 5;
  Pair c(*hosts[0], kNobody, 5, 6, QpType::kUc);
  c.send(1, 8);
  c.send(2, 8);
  ASSERT_TRUE(done(c, 2));
  for (const auto& one : c.core().done) EXPECT_EQ(WcStatus::kSuccess, one.status);
}

TEST_F(PoolFailures, PeerOfAnotherLife_IsNotTaken) {
  Pair c(*hosts[0], 1, 5, 6, QpType::kRc, [](QpAttr& attr) { attr.timeout = 8, attr.retry_cnt = 1; });
  Pair d(*hosts[1], 0, 6, 5, QpType::kRc, [](QpAttr& attr) { attr.rq_psn = 5; });
  d.core().receives = {64};
  c.send(1, 8);
  ASSERT_TRUE(done(c, 1));
  EXPECT_EQ(WcStatus::kRetryExcErr, c.core().done[0].status);
  EXPECT_TRUE(d.core().received.empty());
}

TEST_F(PoolFailures, RecordsOfAnotherQueuePair_AreNotTaken) {
  Pair c(*hosts[0], 1, 5, 2, QpType::kRc, [](QpAttr& attr) { attr.timeout = 8, attr.retry_cnt = 0; });
  b.core().receives = {64};
  c.send(1, 8);  // to b, which is connected to a
  ASSERT_TRUE(done(c, 1));
  EXPECT_EQ(WcStatus::kRetryExcErr, c.core().done[0].status);
  EXPECT_TRUE(b.core().received.empty());
}

TEST_F(PoolFailures, Stop_RefusalThatIsDue_StillLeaves) {
  b.core().rights = 0;
  a.post(write(0), 0, 8);
  ASSERT_TRUE(until([&] { return !b.core().refusals.empty(); }));
  ASSERT_TRUE(b.core().try_enter());
  b.endpoint->stop();
  b.core().leave();
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kRemAccessErr, a.core().done[0].status);
}

/// A READ that the target has taken and acknowledged, and whose response waits for memory of another process.
class PoolLateResponses : public PoolFailures {
 protected:
  PoolLateResponses() {
    a.attr.timeout = 8;
    a.attr.retry_cnt = 1;
    a.endpoint->set_attributes(a.attr);
    fill(b, 0, 100);
    b.core().receives = {64};
    b.core().stopped = true;
    a.post(read(1, 0), 200, 100);
    a.send(2, 0);  // its acknowledgement is that of the READ, too
    EXPECT_TRUE(until([&] { return b.core().received.size() == 1; }));
    for (int i = 0; i < 50; ++i) turns();
    EXPECT_TRUE(a.core().done.empty());
  }
  void stop(Pair& pair) {
    pair.context.set_state(QpState::kErr);
    ASSERT_TRUE(pair.core().try_enter());
    pair.endpoint->stop();
    pair.core().leave();
  }
  void expect_failure(WcStatus status) {
    ASSERT_TRUE(done(a, 2));
    EXPECT_EQ(status, a.core().done[0].status);
    EXPECT_EQ(WcStatus::kWrFlushErr, a.core().done[1].status);
  }
};

TEST_F(PoolLateResponses, QueuePairStops_RequestsFailAfterTheRetries) {
  const int64_t began = base::now_ns();
  stop(b);
  expect_failure(WcStatus::kRetryExcErr);
  EXPECT_GE(base::now_ns() - began, core::retry_limit_ns(8, 1));
}

TEST_F(PoolLateResponses, QueuePairIsReplaced_ReadIsAnsweredByTheNewOne) {
  stop(b);
  b.endpoint->withdraw();
  b.context.set_state(QpState::kRts);
  b.core().stopped = false;
  b.core().receives = {64};
  b.endpoint.emplace(*hosts[1]->engine, b.context.host, b.attr,
                     hosts[1]->engine->claim_link(b.attr.av, b.attr.dest_qp_num));
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(WcStatus::kSuccess, a.core().done[0].status);
  EXPECT_TRUE(std::equal(a.core().memory.begin() + 200, a.core().memory.begin() + 300, b.core().memory.begin()));
}

TEST_F(PoolLateResponses, QueuePairIsReplacedByOneOfALaterSequence_RequestsFail) {
  stop(b);
  b.endpoint->withdraw();
  b.context.set_state(QpState::kRts);
  b.core().stopped = false;
  QpAttr attr = b.attr;
  attr.rq_psn += 100;
  b.endpoint.emplace(*hosts[1]->engine, b.context.host, attr, hosts[1]->engine->claim_link(attr.av, attr.dest_qp_num));
  expect_failure(WcStatus::kRetryExcErr);
}

TEST_F(PoolLateResponses, QueuePairIsReplacedInTheMiddle_ReadIsWhole) {
  Pair c(*hosts[0], 1, 5, 6);
  Pair d(*hosts[1], 0, 6, 5);
  constexpr uint32_t kLength = 200'000;
  fill(d, 0, kLength);
  d.core().receives = {64};
  c.post(read(1, 0), 0, kLength);
  c.send(2, 0);
  // The ring takes a part of the response, and the target's host does not take another turn.
  ASSERT_TRUE(until([&] { return !d.core().received.empty(); }));
  hosts[1]->turn();
  ASSERT_TRUE(c.core().done.empty());
  stop(d);
  d.endpoint->withdraw();
  d.context.set_state(QpState::kRts);
  d.endpoint.emplace(*hosts[1]->engine, d.context.host, d.attr,
                     hosts[1]->engine->claim_link(d.attr.av, d.attr.dest_qp_num));
  ASSERT_TRUE(done(c, 1));
  EXPECT_EQ(WcStatus::kSuccess, c.core().done[0].status);
  EXPECT_TRUE(holds_pattern(c, 0, kLength));
}

TEST_F(PoolLateResponses, KeyBecomesInvalid_RequestsFailWithTheRefusal) {
  b.core().rights = 0;
  b.core().stopped = false;
  expect_failure(WcStatus::kRemAccessErr);
}

TEST_F(PoolLateResponses, PeerIsSilent_RequestsFail) {
  medium.find(hosts[1]->engine->self())->life = Life::kSilent;
  ASSERT_TRUE(until([&] {
    hosts[0]->turn();
    return a.core().done.size() == 2;
  }));
  expect_failure(WcStatus::kRetryExcErr);
}

TEST_F(PoolLateResponses, PeerIsPaused_ReadSucceedsWhenItGoesOn) {
  const int64_t until_ns = base::now_ns() + 2 * core::retry_limit_ns(8, 1);
  while (base::now_ns() < until_ns) hosts[0]->turn();
  EXPECT_TRUE(a.core().done.empty());
  b.core().stopped = false;
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(WcStatus::kSuccess, a.core().done[0].status);
  EXPECT_TRUE(std::equal(a.core().memory.begin() + 200, a.core().memory.begin() + 300, b.core().memory.begin()));
}

TEST_F(PoolFailures, PeerEnded_AfterItsLastRecords_RequestsFail) {
  b.core().receives = {64};
  a.send(1, 8);
  ASSERT_TRUE(done(a, 1));
  a.send(2, 8);  // no receive: it waits
  hosts[1]->pool.leave();
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(WcStatus::kRetryExcErr, a.core().done[1].status);
  EXPECT_TRUE(until([&] { return hosts[0]->pool.closed == 1; }));
}

TEST_F(PoolFailures, PeerEnded_QueuePairWithoutRequests_FailsAtTheNextOne) {
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

TEST_F(PoolFailures, PeerEnded_RecordsBeforeItsEnd_Count) {
  a.core().receives = {64};
  ASSERT_TRUE(until([&] { return hosts[1]->pool.channels[0]->is_open(); }));
  for (int i = 0; i < 5; ++i) turns();
  // It writes and ends between two steps of a turn: the look for records, and that at its life.
  hosts[0]->pool.before_life = [&] {
    b.send(1, 8);
    hosts[1]->pool.leave();
  };
  ASSERT_TRUE(until([&] { return hosts[0]->pool.closed == 1; }));
  EXPECT_EQ(1u, a.core().received.size());
}

TEST_F(PoolFailures, SilentPeer_RequestsFail_AndItMayComeBack) {
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

TEST_F(PoolFailures, Garbage_OfEachKind_EndsTheQueuePairs) {
  for (uint16_t kind = 0; kind < 32; ++kind) {
    Medium own(kLines);
    Host here(own, 0);
    Host there(own, 1);
    Pair c(here, 1, 5, 6);
    Pair d(there, 0, 6, 5);
    const auto both = [&](auto&& condition) {
      const int64_t limit = base::now_ns() + INT64_C(10'000'000'000);
      while (!condition() && base::now_ns() < limit) here.turn(), there.turn();
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
    // The sender of the garbage is not left waiting.
    c.send(1, 8);
    ASSERT_TRUE(both([&] { return c.core().done.size() == 1; })) << kind;
    EXPECT_EQ(WcStatus::kRetryExcErr, c.core().done[0].status);
    EXPECT_EQ(1, here.pool.closed);
  }
}

}  // namespace
}  // namespace nupa::pool::test
