// SPDX-License-Identifier: Apache-2.0
/// Tests of a responder with a relay: what it acknowledges, and when.
#include <gtest/gtest.h>

#include <cstring>

#include "../../support/fake_relay.h"
#include "engine_fixture.h"
#include "responder_fixture.h"
#include "transport/roce/protocol/responder.h"

namespace nupa::roce::test {
namespace {

using nupa::test::FakeRelay;

class RoceResponderRelay : public RoceResponder {
 protected:
  RoceResponderRelay() { restart(); }
  void restart() {
    responder.reset();
    relay = FakeRelay();
    host = std::make_unique<RecordingHost>();
    host->passes_to = &relay;
    responder = std::make_unique<Responder>(*host, options, pool);
    responder->set_max_rd_atomic(kMaxRdAtomic);
    output.take();
  }
  /// The answers that can leave now.
  Texts answers() {
    while (responder->transmit(now, output, 1000) && !responder->awaits_memory()) {
    }
    return output.take();
  }
  Texts answers_to(const Packet& packet) {
    receive(packet);
    return answers();
  }
  /// A message of two packets.
  void receive_two(Operation first, Operation last, uint32_t psn) {
    Packet packet = request(first, psn, kMtu);
    packet.length = kMtu + 8;
    receive(packet);
    packet = request(last, psn + 1, 8);
    packet.length = kMtu + 8;
    receive(packet);
  }
  FakeRelay relay;
};

TEST_F(RoceResponderRelay, Send_IsAcknowledgedWhenTheRelayReportsItsEnd) {
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), Texts{});
  EXPECT_FALSE(responder->has_output());
  EXPECT_EQ(relay.requests, (Texts{"SEND 8"}));
  relay.ends.count = 1;
  EXPECT_TRUE(responder->has_output());
  EXPECT_EQ(answers(), (Texts{"ACK 100 msn 1"}));
  EXPECT_FALSE(responder->has_output());
  EXPECT_TRUE(host->received.empty()) << "the target's own receives stay";
}

TEST_F(RoceResponderRelay, WriteOfTwoPackets_AcknowledgementBeforeItsEnd_LeavesTheLastPacketOut) {
  receive_two(Operation::kWriteFirst, Operation::kWriteLast, kFirstPsn);
  EXPECT_EQ(relay.requests, (Texts{"WRITE 264"}));
  for (const std::string& answer : answers()) EXPECT_EQ(answer, "ACK 100 msn 1");
  relay.ends.count = 1;
  EXPECT_EQ(answers(), (Texts{"ACK 101 msn 1"}));
  EXPECT_TRUE(memory_is_untouched());
}

TEST_F(RoceResponderRelay, OneOfTwoEnds_OnlyThatOneIsAcknowledged) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  receive(request(Operation::kWriteOnly, kFirstPsn + 1, 8));
  relay.ends.count = 1;
  EXPECT_EQ(answers(), (Texts{"ACK 100 msn 2"}));
  relay.ends.count = 2;
  EXPECT_EQ(answers(), (Texts{"ACK 101 msn 2"}));
}

TEST_F(RoceResponderRelay, EmptyWriteAndAtomicWrite_EndAsOthers) {
  receive(request(Operation::kWriteOnly, kFirstPsn, 0));
  receive(request(Operation::kAtomicWrite, kFirstPsn + 1, 8));
  EXPECT_EQ(answers(), Texts{});
  ASSERT_EQ(relay.requests.size(), 2u);
  EXPECT_EQ(relay.requests[0], "WRITE 0");
  relay.ends.count = 2;
  EXPECT_EQ(answers(), (Texts{"ACK 101 msn 2"}));
}

TEST_F(RoceResponderRelay, Failure_IsTheNakOfItsRequest) {
  static constexpr std::pair<WcStatus, NakCode> kCases[] = {
      {WcStatus::kRemAccessErr, NakCode::kRemoteAccess},
      {WcStatus::kRemInvReqErr, NakCode::kInvalidRequest},
      {WcStatus::kRemOpErr, NakCode::kRemoteOperation},
      {WcStatus::kLocProtErr, NakCode::kRemoteOperation},
  };
  for (const auto& [status, code] : kCases) {
    restart();
    receive(request(Operation::kSendOnly, kFirstPsn, 8));
    receive_two(Operation::kSendFirst, Operation::kSendLast, kFirstPsn + 1);
    receive(request(Operation::kSendOnly, kFirstPsn + 3, 8));
    answers();
    relay.ends.count = 1;
    relay.ends.next = status;
    EXPECT_EQ(answers(), (Texts{"NAK 102 msn 3 code " + std::to_string(static_cast<int>(code))}));
    EXPECT_EQ(host->refusals.size(), 1u);
    EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 4, 8)), Texts{}) << "nothing is taken any more";
  }
}

TEST_F(RoceResponderRelay, TargetIsSilent_PeerGetsNoAnswer) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  relay.ends.next = WcStatus::kRetryExcErr;
  EXPECT_EQ(answers(), Texts{});
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), Texts{});
  EXPECT_FALSE(responder->has_output());
  EXPECT_TRUE(host->refusals.empty());
}

TEST_F(RoceResponderRelay, TargetHasNoReceive_EachRepetitionGetsAnRnrNakUntilItEnds) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  relay.ends.awaits_receive = true;
  EXPECT_EQ(answers(), (Texts{"RNR 100 msn 1 timer 5"}));
  EXPECT_EQ(answers(), Texts{});
  EXPECT_FALSE(responder->has_output());
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"RNR 100 msn 1 timer 5"}));
  EXPECT_EQ(relay.requests.size(), 1u) << "a repetition is not a request";
  relay.ends = {1, WcStatus::kSuccess, false};
  EXPECT_EQ(answers(), (Texts{"ACK 100 msn 1"}));
}

TEST_F(RoceResponderRelay, TargetHadNoReceiveForAllRetries_EachRepetitionGetsAShortRnrNak) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  relay.ends.next = WcStatus::kRnrRetryExcErr;
  EXPECT_EQ(answers(), (Texts{"RNR 100 msn 1 timer 1"}));
  EXPECT_EQ(answers(), Texts{});
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"RNR 100 msn 1 timer 1"}));
}

TEST_F(RoceResponderRelay, RnrNak_DoesNotWaitForTheAnswerOfALaterRead) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  receive(read(kFirstPsn + 1, 8));
  relay.ends.awaits_receive = true;
  EXPECT_EQ(answers(), (Texts{"RNR 100 msn 2 timer 5"}));
}

TEST_F(RoceResponderRelay, RnrNak_OfAnEarlierRequest_IsNotForgottenForALaterRequest) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  relay.ends.awaits_receive = true;
  output.answer = Sent::kNotNow;
  responder->transmit(now, output, 8);
  output.answer = Sent::kYes;
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 1, 8)), (Texts{"RNR 100 msn 2 timer 5"}));
}

TEST_F(RoceResponderRelay, Repetition_OfAStandardPeer_GetsNoAnswerBeforeTheEnd) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), Texts{});
  relay.ends.count = 1;
  EXPECT_EQ(answers(), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"ACK 100 msn 1"}));
}

TEST_F(RoceResponderRelay, Read_IsAnsweredWithTheBytesOfTheRelay) {
  receive(read(kFirstPsn, kMtu + 8));
  EXPECT_EQ(answers(), Texts{});
  EXPECT_TRUE(responder->awaits_memory());
  relay.make_ready(7, pattern_bytes(kMtu));
  EXPECT_EQ(answers(), (Texts{"RESPONSE_FIRST 100 256 bytes msn 1"}));
  EXPECT_FALSE(relay.answers.at(7).is_released);
  relay.make_ready(7, pattern_bytes(kMtu + 8));
  EXPECT_EQ(answers(), (Texts{"RESPONSE_LAST 101 8 bytes msn 1"}));
  EXPECT_EQ(output.last.payload[0], pattern(kMtu));
  EXPECT_TRUE(relay.answers.at(7).is_released);
  EXPECT_FALSE(responder->awaits_memory());
}

TEST_F(RoceResponderRelay, EmptyRead_WaitsForItsTarget) {
  receive(read(kFirstPsn, 0));
  EXPECT_EQ(answers(), Texts{});
  relay.make_ready(7, {});
  EXPECT_EQ(answers(), (Texts{"RESPONSE_ONLY 100 0 bytes msn 1"}));
}

TEST_F(RoceResponderRelay, ReadAgain_AsksTheTargetAgainOnceItWasAnswered) {
  receive(read(kFirstPsn, 8));
  answers();
  receive(read(kFirstPsn, 8));
  EXPECT_EQ(relay.requests.size(), 1u) << "it will be answered anyway";
  relay.make_ready(7, pattern_bytes(8));
  EXPECT_EQ(answers().size(), 1u);
  receive(read(kFirstPsn, 8));
  EXPECT_EQ(relay.requests.size(), 2u);
  relay.make_ready(8, pattern_bytes(8));
  EXPECT_EQ(answers(), (Texts{"RESPONSE_ONLY 100 8 bytes msn 1"}));
}

TEST_F(RoceResponderRelay, ReadFails_NakHasItsNumberAndLaterRequestsGetNothing) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  receive(read(kFirstPsn + 1, 2 * kMtu));
  receive(request(Operation::kSendOnly, kFirstPsn + 3, 8));
  receive(read(kFirstPsn + 4, 8));
  relay.ends.count = 1;
  EXPECT_EQ(answers(), Texts{}) << "an acknowledgement that overtakes a response reports it as lost";
  relay.fail(7, WcStatus::kRemAccessErr);
  EXPECT_EQ(answers(), (Texts{"NAK 101 msn 4 code 2"}));
  EXPECT_TRUE(relay.answers.at(7).is_released);
  EXPECT_TRUE(relay.answers.at(8).is_released);
  relay.ends.count = 2;
  EXPECT_EQ(answers(), Texts{});
}

TEST_F(RoceResponderRelay, WriteFails_ReadsBehindItAreDropped) {
  receive(request(Operation::kWriteOnly, kFirstPsn, 8));
  receive(read(kFirstPsn + 1, 8));
  relay.ends.next = WcStatus::kRemAccessErr;
  EXPECT_EQ(answers(), (Texts{"NAK 100 msn 2 code 2"}));
  EXPECT_TRUE(relay.answers.at(7).is_released);
}

TEST_F(RoceResponderRelay, Atomic_IsAnsweredOnceAndRemembered) {
  receive(atomic(Operation::kCompareSwap, kFirstPsn, 5, 4));
  EXPECT_EQ(relay.requests, (Texts{"COMPARE_SWAP 4 5"}));
  EXPECT_EQ(answers(), Texts{});
  EXPECT_EQ(answers_to(atomic(Operation::kCompareSwap, kFirstPsn, 5, 4)), Texts{});
  const uint64_t found = 4;
  std::vector<std::byte> bytes(sizeof found);
  std::memcpy(bytes.data(), &found, sizeof found);
  relay.make_ready(7, bytes);
  EXPECT_EQ(answers(), (Texts{"ATOMIC_ACK 100 found 4 msn 1"}));
  EXPECT_TRUE(relay.answers.at(7).is_released);
  EXPECT_EQ(answers_to(atomic(Operation::kCompareSwap, kFirstPsn, 5, 4)), (Texts{"ATOMIC_ACK 100 found 4 msn 1"}));
  EXPECT_EQ(relay.requests.size(), 1u) << "an atomic is executed once";
}

TEST_F(RoceResponderRelay, RelayHasNoRoom_PacketIsKeptAndTakenLater) {
  relay.has_room = false;
  receive(nupa(request(Operation::kSendOnly, kFirstPsn, 8)));
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 1, 16)));
  EXPECT_EQ(answers(), (Texts{"selective ACK 99 msn 0 has"})) << "nothing is lost";
  EXPECT_TRUE(responder->awaits_memory());
  relay.has_room = true;
  answers();
  EXPECT_EQ(relay.requests, (Texts{"SEND 8", "SEND 16"}));
  relay.ends.count = 2;
  EXPECT_EQ(answers(), (Texts{"selective ACK 101 msn 2 has"}));
}

TEST_F(RoceResponderRelay, SelectiveAcknowledgement_HeldPacketCountsAsMissingOnlyBesideALoss) {
  receive(nupa(request(Operation::kSendOnly, kFirstPsn, 8)));
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 1, 8)));
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 2, 8)));
  EXPECT_EQ(answers(), Texts{});
  EXPECT_EQ(answers_to(nupa(request(Operation::kSendOnly, kFirstPsn, 8))), (Texts{"selective ACK 99 msn 3 has"}));
  // 103 is lost: 100 is held, 101, 102 and 104 have arrived.
  EXPECT_EQ(answers_to(nupa(request(Operation::kSendOnly, kFirstPsn + 4, 8))),
            (Texts{"selective ACK 99 msn 3 has +2 +3 +5"}));
}

TEST_F(RoceResponderRelay, MoreRequestsThanTheRelayHoldsAtOnce_AllAreAcknowledged) {
  for (uint32_t i = 0; i < 3 * core::kMostRelayed; ++i) {
    receive(request(Operation::kSendOnly, kFirstPsn + i, 8));
    if (i + 1 >= core::kMostRelayed) relay.ends.count = i + 2 - core::kMostRelayed;
  }
  EXPECT_EQ(answers(), (Texts{"ACK " + std::to_string(kFirstPsn + 2 * core::kMostRelayed) + " msn " +
                              std::to_string(3 * core::kMostRelayed)}));
}

TEST_F(RoceResponderRelay, Stop_ReleasesAnswersThatWait) {
  receive(read(kFirstPsn, 8));
  responder->stop();
  EXPECT_TRUE(relay.answers.at(7).is_released);
  EXPECT_FALSE(responder->has_output());
}

}  // namespace
}  // namespace nupa::roce::test
