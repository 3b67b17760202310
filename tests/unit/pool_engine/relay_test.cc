// SPDX-License-Identifier: Apache-2.0
/// A queue pair of a gateway: a relay takes the requests of its peer.
#include <cstring>

#include "../../support/fake_relay.h"
#include "requests.h"

namespace nupa::pool::test {
namespace {

using Texts = std::vector<std::string>;
using nupa::test::FakeRelay;

class PoolRelay : public PoolEngine {
 protected:
  PoolRelay() {
    hosts[1]->turn();
    b.core().receives = {64, 64, 64};
  }
  /// Turns in which nothing of the relay changes.
  void some_turns() {
    for (int i = 0; i < 50; ++i) turns();
  }
  [[nodiscard]] bool taken(size_t number) {
    return until([&] { return relay.requests.size() >= number; });
  }
  void end(uint64_t count, WcStatus next = WcStatus::kSuccess) {
    relay.ends.count = count;
    relay.ends.next = next;
    b.answer();
  }
  SendWr one_sided(Opcode opcode, uint64_t id) {
    SendWr wr;
    wr.wr_id = id;
    wr.opcode = opcode;
    wr.remote_addr = kBase;
    wr.rkey = kKey;
    return wr;
  }
  std::vector<RecordingHost::Done>& completions() { return a.core().done; }

  FakeRelay relay;
  Pair a{*hosts[0], 1, 1, 2, QpType::kRc, [](QpAttr& attr) {
           attr.timeout = 10;  // 4 ms
           attr.retry_cnt = 1;
           attr.rnr_retry = 2;
         }};
  Pair b{*hosts[1], 0, 2, 1, QpType::kRc, {}, &relay};
};

TEST_F(PoolRelay, Send_CompletesWhenTheRelayReportsItsEnd) {
  a.send(1, 8);
  ASSERT_TRUE(taken(1));
  some_turns();
  EXPECT_TRUE(completions().empty());
  end(1);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kSuccess, completions()[0].status);
  EXPECT_EQ((Texts{"SEND 8"}), relay.requests);
  EXPECT_TRUE(b.core().received.empty()) << "the receives of the gateway's queue pair stay";
}

TEST_F(PoolRelay, MessagesOfSeveralParts_AreOneRequestEach) {
  constexpr uint32_t kLength = 20'000;
  a.send(1, kLength);
  a.post(one_sided(Opcode::kRdmaWrite, 2), 0, kLength);
  ASSERT_TRUE(taken(2));
  EXPECT_EQ((Texts{"SEND 20000", "WRITE 20000"}), relay.requests);
  end(2);
  ASSERT_TRUE(done(a, 2));
}

TEST_F(PoolRelay, OneOfTwoEnds_OnlyThatOneCompletes) {
  a.send(1, 8);
  a.post(one_sided(Opcode::kRdmaWrite, 2), 0, 8);
  ASSERT_TRUE(taken(2));
  end(1);
  ASSERT_TRUE(done(a, 1));
  some_turns();
  EXPECT_EQ(1u, completions().size());
  end(2);
  ASSERT_TRUE(done(a, 2));
}

TEST_F(PoolRelay, OwnRequestsCarryNoAcknowledgementOfWhatHasNotEnded) {
  a.send(1, 8);
  ASSERT_TRUE(taken(1));
  a.core().receives = {64};
  b.send(5, 8);
  ASSERT_TRUE(done(b, 1));
  some_turns();
  EXPECT_TRUE(completions().empty());
  end(1);
  ASSERT_TRUE(done(a, 1));
}

TEST_F(PoolRelay, AtomicWrite_EndsAsAWrite) {
  a.post(one_sided(Opcode::kAtomicWrite, 1), 0, 8);
  ASSERT_TRUE(taken(1));
  some_turns();
  EXPECT_TRUE(completions().empty());
  end(1);
  ASSERT_TRUE(done(a, 1));
}

TEST_F(PoolRelay, Read_IsAnsweredWithTheBytesOfTheRelay) {
  constexpr uint32_t kLength = 10'000;
  a.post(one_sided(Opcode::kRdmaRead, 1), 0, kLength);
  ASSERT_TRUE(taken(1));
  const auto [ticket, answer] = *relay.answers.begin();
  some_turns();
  EXPECT_TRUE(completions().empty());
  relay.make_ready(ticket, pattern_bytes(kLength));
  b.answer();
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kSuccess, completions()[0].status);
  EXPECT_EQ(0, std::memcmp(a.core().memory.data(), pattern_bytes(kLength).data(), kLength));
  EXPECT_TRUE(relay.answers.at(ticket).is_released);
}

TEST_F(PoolRelay, EmptyRead_WaitsForTheFarEnd) {
  a.post(one_sided(Opcode::kRdmaRead, 1));
  ASSERT_TRUE(taken(1));
  some_turns();
  EXPECT_TRUE(completions().empty());
  relay.make_ready(relay.answers.begin()->first, {});
  b.answer();
  ASSERT_TRUE(done(a, 1));
}

TEST_F(PoolRelay, Atomic_ReturnsTheValueOfTheRelay) {
  SendWr wr = one_sided(Opcode::kFetchAdd, 1);
  wr.compare_add = 3;
  a.post(wr, 16, 8);
  ASSERT_TRUE(taken(1));
  EXPECT_EQ((Texts{"FETCH_ADD 3 0"}), relay.requests);
  const uint32_t ticket = relay.answers.begin()->first;
  relay.make_ready(ticket, pattern_bytes(8));
  b.answer();
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(0, std::memcmp(a.core().memory.data() + 16, pattern_bytes(8).data(), 8));
  EXPECT_TRUE(relay.answers.at(ticket).is_released);
}

TEST_F(PoolRelay, RelayHasNoRoom_RequestIsSentAgain) {
  relay.has_room = false;
  a.send(1, 20'000);
  some_turns();
  EXPECT_TRUE(relay.requests.empty());
  relay.has_room = true;
  ASSERT_TRUE(taken(1));
  EXPECT_EQ((Texts{"SEND 20000"}), relay.requests);
  end(1);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kSuccess, completions()[0].status);
}

TEST_F(PoolRelay, RelayHasNoRoom_EndOfAnEarlierRequest_DoesNotHideIt) {
  a.send(1, 8);
  ASSERT_TRUE(taken(1));
  relay.has_room = false;
  a.send(2, 8);
  // A program that polls writes its answers later.
  hosts[1]->engine->take_turn(progress::Receiver::kPoller);
  ASSERT_TRUE(b.endpoint->owes());
  relay.has_room = true;
  end(1);
  ASSERT_TRUE(taken(2));
  end(2);
  ASSERT_TRUE(done(a, 2));
}

class PoolRelayFailure : public PoolRelay, public testing::WithParamInterface<std::pair<WcStatus, WcStatus>> {};

TEST_P(PoolRelayFailure, IsTheStatusOfItsRequest) {
  for (uint64_t id = 1; id <= 3; ++id) a.send(id, 8);
  ASSERT_TRUE(taken(3));
  end(1, GetParam().first);
  ASSERT_TRUE(done(a, 3));
  EXPECT_EQ(WcStatus::kSuccess, completions()[0].status);
  EXPECT_EQ(GetParam().second, completions()[1].status);
  EXPECT_EQ(WcStatus::kWrFlushErr, completions()[2].status);
  EXPECT_EQ(1u, b.core().refusals.size());
}

INSTANTIATE_TEST_SUITE_P(Statuses, PoolRelayFailure,
                         testing::Values(std::pair{WcStatus::kRemAccessErr, WcStatus::kRemAccessErr},
                                         std::pair{WcStatus::kRemInvReqErr, WcStatus::kRemInvReqErr},
                                         std::pair{WcStatus::kRemOpErr, WcStatus::kRemOpErr},
                                         std::pair{WcStatus::kLocProtErr, WcStatus::kRemOpErr}));

TEST_F(PoolRelay, ReadFails_RequestsBehindItAreFlushed) {
  a.post(one_sided(Opcode::kRdmaRead, 1), 0, 8);
  a.send(2, 8);
  ASSERT_TRUE(taken(2));
  relay.fail(relay.answers.begin()->first, WcStatus::kRemAccessErr);
  b.answer();
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(WcStatus::kRemAccessErr, completions()[0].status);
  EXPECT_EQ(WcStatus::kWrFlushErr, completions()[1].status);
}

TEST_F(PoolRelay, WriteFails_ReadsBehindItAreReleased) {
  a.send(1, 8);
  a.post(one_sided(Opcode::kRdmaRead, 2), 0, 8);
  ASSERT_TRUE(taken(2));
  end(0, WcStatus::kRemAccessErr);
  ASSERT_TRUE(done(a, 2));
  EXPECT_EQ(WcStatus::kRemAccessErr, completions()[0].status);
  EXPECT_TRUE(relay.answers.begin()->second.is_released);
}

TEST_F(PoolRelay, FarEndIsSilent_RequestFailsAfterItsRetries) {
  a.send(1, 8);
  ASSERT_TRUE(taken(1));
  end(0, WcStatus::kRetryExcErr);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kRetryExcErr, completions()[0].status);
  EXPECT_EQ(1u, relay.requests.size()) << "a repetition is not a request";
  EXPECT_TRUE(b.core().refusals.empty());
}

TEST_F(PoolRelay, FarEndHasNoReceive_RequestWaitsForIt) {
  a.send(1, 8);
  ASSERT_TRUE(taken(1));
  relay.ends.awaits_receive = true;
  b.answer();
  ASSERT_TRUE(until([&] { return a.context.shared.counters.rnr.load() != 0; }));
  EXPECT_TRUE(completions().empty());
  relay.ends.awaits_receive = false;
  end(1);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kSuccess, completions()[0].status);
  EXPECT_EQ(1u, relay.requests.size());
}

TEST_F(PoolRelay, FarEndHasNoReceive_RetriesOfTheRequestEnd) {
  a.send(1, 8);
  ASSERT_TRUE(taken(1));
  relay.ends.awaits_receive = true;
  b.answer();
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kRnrRetryExcErr, completions()[0].status);
}

TEST_F(PoolRelay, FarEndHadNoReceiveForAllRetries_RequestFails) {
  a.send(1, 8);
  ASSERT_TRUE(taken(1));
  end(0, WcStatus::kRnrRetryExcErr);
  ASSERT_TRUE(done(a, 1));
  EXPECT_EQ(WcStatus::kRnrRetryExcErr, completions()[0].status);
  EXPECT_EQ(1u, relay.requests.size());
}

TEST_F(PoolRelay, MoreRequestsThanTheRelayHoldsAtOnce_AllComplete) {
  for (uint64_t id = 1; id <= 2 * core::kMostRelayed; ++id) {
    a.send(id, 8);
    ASSERT_TRUE(taken(id));
    if (id > 3) end(id - 3);
    some_turns();
    EXPECT_EQ(id > 3 ? id - 3 : 0, completions().size());
  }
}

TEST_F(PoolRelay, Stop_ReleasesAnswersThatWait) {
  a.post(one_sided(Opcode::kRdmaRead, 1), 0, 8);
  ASSERT_TRUE(taken(1));
  b.endpoint->stop();
  EXPECT_TRUE(relay.answers.begin()->second.is_released);
}

TEST_F(PoolRequests, AwaitsReceive_UntilTheTargetHasOne) {
  EXPECT_FALSE(a.endpoint->awaits_receive());
  a.send(1, 8);
  ASSERT_TRUE(until([&] { return a.endpoint->awaits_receive(); }));
  b.core().receives = {64};
  ASSERT_TRUE(done(a, 1));
  EXPECT_FALSE(a.endpoint->awaits_receive());
}

}  // namespace
}  // namespace nupa::pool::test
