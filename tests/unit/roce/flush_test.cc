// SPDX-License-Identifier: Apache-2.0
/// FLUSH over packets (IBTA annex A19): the request, its answer, repetitions, refusals; and the answer to an ATOMIC
/// WRITE.
#include <gtest/gtest.h>

#include "../../support/fake_relay.h"
#include "engine_fixture.h"
#include "requester_fixture.h"
#include "responder_fixture.h"

namespace nupa::roce::test {
namespace {

using nupa::test::FakeRelay;

constexpr uint32_t kFlags = flush_flag::kGlobal;

// ---- The requester.

class RoceFlushRequester : public RoceRequester {
 protected:
  void flush(uint64_t length, uint32_t flags = kFlags) {
    SendWr wr;
    wr.wr_id = posted++;
    wr.opcode = Opcode::kFlush;
    wr.remote_addr = kBase + 16;
    wr.rkey = 0x99;
    wr.imm_or_rkey = flags;
    wr.compare_add = length;
    requester->post(wr, static_cast<uint32_t>(wr.wr_id));
  }
  void answer_flush(uint32_t psn) { response(Operation::kReadResponseOnly, psn, 0); }
};

TEST_F(RoceFlushRequester, Packet_NamesTheRangeOrNone) {
  flush(5000);
  EXPECT_EQ(sends(), (Texts{"FLUSH 100 1 of 5000 bytes asks"}));
  EXPECT_EQ(output.last.packet.address, kBase + 16);
  EXPECT_EQ(output.last.packet.rkey, 0x99u);
  flush(5000, flush_flag::kPersistent | flush_flag::kRegion);
  EXPECT_EQ(sends(), (Texts{"FLUSH 101 18 of 0 bytes asks"}));
  EXPECT_EQ(output.last.packet.address, 0u);
  EXPECT_EQ(output.last.packet.rkey, 0x99u);
}

TEST_F(RoceFlushRequester, Answer_CompletesItAndAllBefore) {
  post(Opcode::kRdmaWrite, 8);
  flush(8);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends().size(), 3u);
  answer_flush(kFirstPsn + 1);
  EXPECT_EQ(host->done, (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kSuccess, 0}}));
  ack(kFirstPsn + 2);
  EXPECT_EQ(host->done.size(), 3u);
}

TEST_F(RoceFlushRequester, AcknowledgementWithoutTheAnswer_RequestsItAgain) {
  flush(8);
  post(Opcode::kSend, 8);
  sends();
  ack(kFirstPsn + 1);
  EXPECT_TRUE(host->done.empty());
  EXPECT_EQ(sends(), (Texts{"FLUSH 100 1 of 8 bytes asks", "SEND_ONLY 101 8 bytes asks"}));
  answer_flush(kFirstPsn);
  ack(kFirstPsn + 1);
  EXPECT_EQ(host->done.size(), 2u);
}

TEST_F(RoceFlushRequester, AnswerWithPayload_IsStray) {
  flush(8);
  sends();
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  EXPECT_TRUE(host->done.empty());
  EXPECT_EQ(counters().stray, 1u);
}

TEST_F(RoceFlushRequester, CountsAsARead) {
  for (int i = 0; i < 5; ++i) flush(8);
  EXPECT_EQ(sends().size(), 4u) << "max_rd_atomic";
  answer_flush(kFirstPsn);
  EXPECT_EQ(sends(), (Texts{"FLUSH 104 1 of 8 bytes asks"}));
}

TEST_F(RoceFlushRequester, Fence_WaitsForIt) {
  flush(8);
  post(Opcode::kSend, 8, send_flag::kFence);
  EXPECT_EQ(sends().size(), 1u);
  answer_flush(kFirstPsn);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 101 8 bytes asks"}));
}

TEST_F(RoceFlushRequester, Silence_SendsItAgain) {
  flush(8);
  sends();
  ASSERT_TRUE(wait());
  requester->on_timer(now);
  EXPECT_EQ(sends(), (Texts{"FLUSH 100 1 of 8 bytes asks"}));
  answer_flush(kFirstPsn);
  EXPECT_EQ(host->done, (Done{{0, WcStatus::kSuccess, 0}}));
}

TEST_F(RoceFlushRequester, NoAnswer_FormsOfTheCrcTakeTurns) {
  const auto goes_as_rxe = [&] {
    EXPECT_EQ(sends().size(), 1u);
    return output.last.packet.crc_as_rxe;
  };
  const auto wait_for_repetition = [&] {
    ASSERT_TRUE(wait());
    requester->on_timer(now);
  };
  flush(8);
  EXPECT_FALSE(goes_as_rxe()) << "the specification first";
  wait_for_repetition();
  EXPECT_TRUE(goes_as_rxe());
  wait_for_repetition();
  EXPECT_FALSE(goes_as_rxe());
  wait_for_repetition();
  EXPECT_TRUE(goes_as_rxe());
  answer_flush(kFirstPsn);
  flush(8);
  EXPECT_TRUE(goes_as_rxe()) << "this one was answered";
}

TEST_F(RoceFlushRequester, OfANupaPeer_HasTheCrcOfTheSpecification) {
  post(Opcode::kSend, 8);
  sends();
  receive(selective(kFirstPsn));
  flush(8);
  sends();
  ASSERT_TRUE(wait());
  requester->on_timer(now);
  EXPECT_EQ(sends().size(), 1u);
  EXPECT_FALSE(output.last.packet.crc_as_rxe);
}

TEST_F(RoceFlushRequester, RemoteAccessNak_IsItsStatus) {
  flush(8);
  sends();
  nak(kFirstPsn, NakCode::kRemoteAccess);
  EXPECT_EQ(host->done, (Done{{0, WcStatus::kRemAccessErr, 0}}));
}

TEST_F(RoceRequester, AtomicWrite_ResponseWithoutPayload_CompletesIt) {
  post(Opcode::kSend, 8);
  post(Opcode::kAtomicWrite, 0);
  sends();
  response(Operation::kReadResponseOnly, kFirstPsn + 1, 8);
  EXPECT_TRUE(host->done.empty()) << "it has no payload";
  response(Operation::kReadResponseOnly, kFirstPsn + 1, 0);
  EXPECT_EQ(host->done.size(), 2u);
}

TEST_F(RoceRequester, Write_ResponseWithoutPayload_IsStray) {
  post(Opcode::kRdmaWrite, 0);
  sends();
  response(Operation::kReadResponseOnly, kFirstPsn, 0);
  EXPECT_TRUE(host->done.empty());
  EXPECT_EQ(counters().stray, 1u);
}

// ---- The responder.

class RoceFlushResponder : public RoceResponder {
 protected:
  Packet flush(uint32_t psn, uint32_t length = 8, uint32_t flags = kFlags) {
    Packet packet = request(Operation::kFlush, psn);
    packet.length = length;
    packet.flush = flags;
    return packet;
  }
};

TEST_F(RoceFlushResponder, Flush_IsAnsweredInItsTurnByAnEmptyResponse) {
  receive(request(Operation::kWriteOnly, kFirstPsn, 8));
  receive(flush(kFirstPsn + 1, 100'000));
  EXPECT_EQ(answers(), (Texts{"RESPONSE_ONLY 101 0 bytes msn 2"}));
  EXPECT_EQ(host->flushed, (Texts{"0+100000"}));
  EXPECT_EQ(answers_to(request(Operation::kWriteOnly, kFirstPsn + 2, 8)), (Texts{"ACK 102 msn 3"}))
      << "the range takes no packet numbers";
}

TEST_F(RoceFlushResponder, RepeatedFlush_IsAnsweredAgainAndNotExecuted) {  // oA19-14, oA19-15
  receive(flush(kFirstPsn, 100'000));
  receive(request(Operation::kWriteOnly, kFirstPsn + 1, 8));
  answers();
  host->key = 1;
  EXPECT_EQ(answers_to(flush(kFirstPsn, 100'000)), (Texts{"RESPONSE_ONLY 100 0 bytes msn 2"}));
  EXPECT_EQ(host->flushed.size(), 1u);
  EXPECT_TRUE(host->refusals.empty());
}

TEST_F(RoceFlushResponder, RepeatedFlush_WhoseAnswerHasNotLeft_IsAnsweredOnce) {
  receive(flush(kFirstPsn));
  receive(flush(kFirstPsn));
  EXPECT_EQ(answers(), (Texts{"RESPONSE_ONLY 100 0 bytes msn 1"}));
}

TEST_F(RoceFlushResponder, WithoutTheRight_IsARemoteAccessError) {
  struct Case {
    const char* what;
    uint32_t key;
    uint64_t address;
    uint32_t rights;
    uint32_t flags;
  };
  constexpr uint32_t kOthers = access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
  constexpr uint32_t kBoth = access::kFlushGlobal | access::kFlushPersistent;
  for (const Case& each : {Case{"key", 1, kBase, kBoth, kFlags},
                           {"key", 1, kBase, kBoth, kFlags | flush_flag::kRegion},
                           {"range", kKey, kBase + kMemoryBytes, kBoth, kFlags},
                           {"right", kKey, kBase, kOthers | access::kFlushPersistent, kFlags},
                           {"right", kKey, kBase, access::kFlushGlobal, flush_flag::kPersistent},
                           {"right", kKey, kBase, access::kFlushGlobal, kFlags | flush_flag::kPersistent}}) {
    begin(options);
    host->rights = each.rights;
    Packet packet = flush(kFirstPsn, 8, each.flags);
    packet.rkey = each.key;
    packet.address = each.address;
    expect_refused(answers_to(packet), kFirstPsn, 0, NakCode::kRemoteAccess, EventType::kQpAccessErr, each.what);
  }
  begin(options);
  host->rights = kBoth;
  EXPECT_EQ(answers_to(flush(kFirstPsn, 8, flush_flag::kGlobal | flush_flag::kPersistent | flush_flag::kRegion)),
            (Texts{"RESPONSE_ONLY 100 0 bytes msn 1"}));
}

TEST_F(RoceFlushResponder, NoOrUnknownPlacement_IsAnInvalidRequest) {
  for (const uint32_t flags : {0u, 4u, 8u, kFlags | 8, uint32_t{flush_flag::kRegion}, kFlags | 0x20}) {
    begin(options);
    expect_invalid(answers_to(flush(kFirstPsn, 8, flags)), kFirstPsn, 0, std::to_string(flags));
  }
}

TEST_F(RoceFlushResponder, NoOutstandingReadsAllowed_IsAnInvalidRequest) {
  responder->set_max_rd_atomic(0);
  expect_invalid(answers_to(flush(kFirstPsn)), kFirstPsn, 0, "depth 0");
}

TEST_F(RoceFlushResponder, MoreThanTheOutstandingReads_AreTaken) {  // rdma_rxe does not count them
  constexpr uint32_t kRoom = 64;
  for (uint32_t i = 0; i < kRoom; ++i) receive(flush(kFirstPsn + i));
  receive(flush(kFirstPsn + kRoom));
  EXPECT_EQ(responder->counters().dropped, 1u) << "no room for the answer: the peer asks again";
  EXPECT_EQ(answers().size(), kRoom);
  EXPECT_TRUE(host->refusals.empty());
  EXPECT_EQ(answers_to(flush(kFirstPsn + kRoom)).size(), 1u);
  for (uint32_t i = 0; i < kMaxRdAtomic; ++i) receive(flush(kFirstPsn + kRoom + 1 + i));
  EXPECT_EQ(answers_to(read(kFirstPsn + kRoom + 1 + kMaxRdAtomic, 8)).size(), kMaxRdAtomic + 1u)
      << "a READ is taken beside them";
}

TEST_F(RoceFlushResponder, OfANupaPeer_IsAcknowledgedAndAnswered) {
  const Texts said = answers_to(nupa(flush(kFirstPsn)));
  EXPECT_EQ(said, (Texts{"RESPONSE_ONLY 100 0 bytes msn 1", "selective ACK 100 msn 1 has"}));
}

TEST_F(RoceFlushResponder, Xrc_NamesItsQueue) {
  options.service = Service::kXrc;
  begin(options);
  Packet packet = flush(kFirstPsn);
  packet.srqn = 77;
  EXPECT_EQ(answers_to(packet), (Texts{"RESPONSE_ONLY 100 0 bytes msn 1"}));
  EXPECT_EQ(host->reached_srqn, 77u);
  host->no_queue = true;
  expect_invalid(answers_to(flush(kFirstPsn + 1)), kFirstPsn + 1, 1, "no queue");
}

TEST_F(RoceResponder, QueueOfAnXrcFlush_IsLookedUp_PeerTriesAgain) {
  options.service = Service::kXrc;
  begin(options);
  host->queue_comes_later = true;
  EXPECT_EQ(answers_to(request(Operation::kFlush, kFirstPsn)), (Texts{"RNR 100 msn 0 timer 5"}));
}

TEST_F(RoceResponder, AtomicWrites_OfAStandardPeer_GetAResponseEach) {
  receive(request(Operation::kAtomicWrite, kFirstPsn, 8));
  receive(request(Operation::kAtomicWrite, kFirstPsn + 1, 8));
  receive(request(Operation::kWriteOnly, kFirstPsn + 2, 8));
  EXPECT_EQ(answers(), (Texts{"RESPONSE_ONLY 100 0 bytes msn 1", "RESPONSE_ONLY 101 0 bytes msn 2", "ACK 102 msn 3"}));
  EXPECT_EQ(answers_to(nupa(request(Operation::kAtomicWrite, kFirstPsn + 3, 8))),
            (Texts{"selective ACK 103 msn 4 has"}));
}

TEST_F(RoceResponder, AtomicWrite_NoRoomForItsResponse_IsDropped) {
  constexpr uint32_t kRoom = 64;
  for (uint32_t i = 0; i <= kRoom; ++i) receive(request(Operation::kAtomicWrite, kFirstPsn + i, 8));
  EXPECT_EQ(responder->counters().dropped, 1u);
  EXPECT_EQ(answers().size(), kRoom);
  EXPECT_EQ(answers_to(request(Operation::kAtomicWrite, kFirstPsn + kRoom, 8)).size(), 1u);
}

// ---- With a relay.

class RoceFlushRelay : public RoceFlushResponder {
 protected:
  RoceFlushRelay() {
    host = std::make_unique<RecordingHost>();
    host->passes_to = &relay;
    responder = std::make_unique<Responder>(*host, options, pool);
    responder->set_max_rd_atomic(kMaxRdAtomic);
  }
  Texts answers_of_relay() {
    while (responder->transmit(now, output, 1000) && !responder->awaits_memory()) {
    }
    return output.take();
  }
  FakeRelay relay;
};

TEST_F(RoceFlushRelay, Flush_IsAnsweredWhenTheFarEndHasAnswered) {
  receive(flush(kFirstPsn, 64));
  EXPECT_EQ(relay.requests, (Texts{"FLUSH 1 of 64"}));
  EXPECT_EQ(answers_of_relay(), Texts{});
  relay.make_ready(7, {});
  EXPECT_EQ(answers_of_relay(), (Texts{"RESPONSE_ONLY 100 0 bytes msn 1"}));
  EXPECT_TRUE(relay.answers.at(7).is_released);
  EXPECT_TRUE(host->flushed.empty()) << "the far end checks the key";
}

TEST_F(RoceFlushRelay, RepeatedFlush_IsNotPassedOn) {
  receive(flush(kFirstPsn, 64));
  receive(flush(kFirstPsn, 64));
  relay.make_ready(7, {});
  EXPECT_EQ(answers_of_relay(), (Texts{"RESPONSE_ONLY 100 0 bytes msn 1"}));
  receive(flush(kFirstPsn, 64));
  EXPECT_EQ(answers_of_relay(), (Texts{"RESPONSE_ONLY 100 0 bytes msn 1"}));
  EXPECT_EQ(relay.requests.size(), 1u);
}

TEST_F(RoceFlushRelay, FarEndRefuses_IsTheNakOfTheFlush) {
  receive(flush(kFirstPsn, 64));
  relay.fail(7, WcStatus::kRemAccessErr);
  EXPECT_EQ(answers_of_relay(), (Texts{"NAK 100 msn 1 code 2"}));
}

}  // namespace
}  // namespace nupa::roce::test
