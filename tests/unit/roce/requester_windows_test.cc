// SPDX-License-Identifier: Apache-2.0
/// Tests of how much a requester has under way, when it requests answers, and of pausing and flushing.
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "requester_fixture.h"
#include "transport/roce/protocol/requester.h"

namespace nupa::roce::test {
namespace {

// ---- Windows (docs/design/congestion.md), and packets that request acknowledgements (docs/design/roce.md).

TEST_F(RoceRequester, UnknownPeer_GetsFourPacketsAtFirst) {
  post(Opcode::kSend, 400 * kMtu);
  EXPECT_EQ(sends().size(), 3u) << "1,024 bytes with their headers";
  ack(kFirstPsn);
  EXPECT_EQ(requester->peer_window(), 256u * kMtu);
  EXPECT_EQ(sends().size() + 2, 256u * kMtu / (kMtu + kBthBytes + kIcrcBytes));
}

TEST_F(RoceRequester, AnswerOfANupaPeer_DoesNotOpenTheStandardWindow) {
  post(Opcode::kSend, 400 * kMtu);
  sends();
  Packet packet = answer(syndrome(AckKind::kAck, kAckUnlimited), kFirstPsn);
  packet.mark = kNupaMark;
  receive(packet);
  EXPECT_EQ(requester->peer_window(), 4u * kMtu);
}

TEST_F(RoceRequester, Each32ndAndLastPacket_RequestsAnAcknowledgement) {
  receive(selective(kFirstPsn - 1));  // without a window: no limit
  ASSERT_EQ(requester->peer_window(), UINT64_MAX);
  post(Opcode::kSend, 70 * kMtu);
  const Texts packets = sends();
  ASSERT_EQ(packets.size(), 70u);
  for (uint32_t i = 0; i < 70; ++i) {
    const bool asks = packets[i].find("asks") != std::string::npos;
    EXPECT_EQ(asks, (kFirstPsn + i) % 32 == 31 || i == 69) << packets[i];
  }
}

TEST_F(RoceRequester, PeerWindow_APacketOfEachQuarter_RequestsAnAcknowledgement) {
  constexpr uint32_t kPacket = kMtu + kBthBytes + kIcrcBytes;
  post(Opcode::kSend, 8);
  sends();
  Packet ack = selective(kFirstPsn);
  ack.window = 16 * kPacket;
  receive(ack);
  post(Opcode::kSend, 30 * kMtu);
  const Texts packets = sends();
  ASSERT_EQ(packets.size(), 16u) << "as much as there is room for";
  for (uint32_t i = 0; i < 16; ++i) EXPECT_EQ(packets[i].find("asks") != std::string::npos, i % 4 == 3) << packets[i];
}

TEST_F(RoceRequester, PacketsUnderWay_AreAtMost1024) {
  receive(selective(kFirstPsn - 1));
  for (int i = 0; i < 1100; ++i) post(Opcode::kSend, 1);
  EXPECT_EQ(sends().size(), 1024u);
  ack(kFirstPsn + 1);
  EXPECT_EQ(sends().size(), 2u);
}

TEST_F(RoceRequester, PacketsUnderWay_WithResponses_AreAtMost1024) {
  receive(selective(kFirstPsn - 1));
  for (int i = 0; i < 1000; ++i) post(Opcode::kSend, 1);
  post(Opcode::kRdmaRead, 100 * kMtu);
  const Texts sent = sends();
  ASSERT_EQ(sent.size(), 1001u);
  EXPECT_EQ(sent.back(), "READ 1100 " + std::to_string(24 * kMtu) + " bytes asks");
}

TEST_F(RoceRequester, Transmit_Budget_IsKept) {
  receive(selective(kFirstPsn - 1));
  post(Opcode::kSend, 20 * kMtu);
  EXPECT_TRUE(requester->transmit(now, output, 7));
  EXPECT_EQ(output.take().size(), 7u);
  EXPECT_FALSE(requester->transmit(now, output, 70));
  EXPECT_EQ(output.take().size(), 13u);
}

TEST_F(RoceRequester, PacketThatCannotLeaveNow_LeavesOnceLater) {
  post(Opcode::kSend, 8);
  output.answer = Sent::kNotNow;
  EXPECT_FALSE(requester->transmit(now, output, 7));
  EXPECT_EQ(counters().packets, 0u);
  EXPECT_EQ(requester->deadline(), INT64_MAX) << "nothing is under way";
  output.answer = Sent::kYes;
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  EXPECT_EQ(counters().packets, 1u);
}

// ---- Faults of this end, SQD, flushing (10.8.5, 10.3.1).

TEST_F(RoceRequester, Ibta1085_LocalFault_IsReportedInOrder) {
  post(Opcode::kSend, 8);
  post(Opcode::kSend, 8, 0, kBase + kMemoryBytes);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"})) << "and nothing behind it is sent";
  EXPECT_EQ(done(), Done{}) << "the first is not over";
  EXPECT_EQ(sends(), Texts{});
  ack(kFirstPsn);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kLocProtErr, 0}, {2, WcStatus::kWrFlushErr, 0}}));
}

TEST_F(RoceRequester, UnreadableMemory_IsALocalProtectionError) {
  post(Opcode::kSend, 8);
  output.answer = Sent::kUnreadable;
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(done(), (Done{{0, WcStatus::kLocProtErr, 0}}));
}

TEST_F(RoceRequester, LocalRequests_RunAndCompleteInOrder) {
  post(Opcode::kSend, 8);
  post(Opcode::kLocalInv, 0);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends().size(), 2u);
  EXPECT_EQ(host->locals, (std::vector<uint64_t>{1}));
  EXPECT_EQ(done(), Done{});
  ack(kFirstPsn + 1);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kSuccess, 0}, {2, WcStatus::kSuccess, 8}}));
  host->local_status = WcStatus::kMwBindErr;
  post(Opcode::kBindMw, 0);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(done()[3], (RecordingHost::Done{3, WcStatus::kMwBindErr, 0}));
  EXPECT_EQ(done()[4], (RecordingHost::Done{4, WcStatus::kWrFlushErr, 0}));
}

TEST_F(RoceRequester, LocalRequest_InAReusedEntry_Runs) {
  RequesterOptions one_place = options;
  one_place.max_wr = 1;
  begin(one_place);
  for (const Opcode opcode : {Opcode::kLocalInv, Opcode::kBindMw, Opcode::kLocalInv}) {
    post(opcode, 0);
    EXPECT_EQ(sends(), Texts{});
  }
  EXPECT_EQ(host->locals, (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 0}, {1, WcStatus::kSuccess, 0}, {2, WcStatus::kSuccess, 0}}));
}

TEST_F(RoceRequester, Ibta10314_Paused_FinishesStartedRequestsOnly) {
  post(Opcode::kSend, 2 * kMtu);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(1).size(), 1u);
  requester->pause(true);
  EXPECT_FALSE(requester->drained());
  EXPECT_EQ(sends(), (Texts{"SEND_LAST 101 256 bytes asks"}));
  ack(kFirstPsn + 1);
  EXPECT_TRUE(requester->drained());
  EXPECT_EQ(sends(), Texts{});
  requester->pause(false);
  EXPECT_FALSE(requester->drained());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 102 8 bytes asks"}));
}

TEST_F(RoceRequester, Ibta10314_PausedAfterAGoBack_ResendsStartedRequests) {
  for (const bool late_answer : {false, true}) {
    begin(options);
    send_first(3, 4);
    nak(kFirstPsn, NakCode::kSequence);
    requester->pause(true);
    EXPECT_FALSE(requester->drained());
    if (!late_answer) {
      EXPECT_EQ(sends(),
                (Texts{"SEND_ONLY 100 8 bytes asks", "SEND_ONLY 101 8 bytes asks", "SEND_ONLY 102 8 bytes asks"}));
    }
    ack(kFirstPsn);
    EXPECT_FALSE(requester->drained()) << "two that were started are left";
    ack(kFirstPsn + 2);
    EXPECT_EQ(sends(), Texts{}) << "the fourth was never started";
    EXPECT_EQ(done().size(), 3u);
    EXPECT_TRUE(requester->drained());
    requester->pause(false);
    EXPECT_EQ(sends(), (Texts{"SEND_ONLY 103 8 bytes asks"}));
  }
}

TEST_F(RoceRequester, Ibta10314_PausedAfterAGoBack_CountsALocalRequestThatHasRunAsDrained) {
  post(Opcode::kSend, 8);
  post(Opcode::kLocalInv, 0);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(3).size(), 1u) << "the budget ends behind the local request";
  EXPECT_EQ(host->locals.size(), 1u);
  nak(kFirstPsn, NakCode::kSequence);
  requester->pause(true);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  EXPECT_FALSE(requester->drained());
  ack(kFirstPsn);
  EXPECT_TRUE(requester->drained());
  EXPECT_EQ(sends(), Texts{});
}

TEST_F(RoceRequester, PausedBeforeItsFirstPacket_RequestIsNotStarted) {
  post(Opcode::kSend, 8);
  requester->pause(true);
  EXPECT_TRUE(requester->drained());
  EXPECT_EQ(sends(), Texts{});
}

TEST_F(RoceRequester, Flush_CompletesEachRequestOnceInOrder) {
  for (int i = 0; i < 3; ++i) post(Opcode::kSend, 8);
  sends(1);
  requester->flush();
  EXPECT_EQ(done(),
            (Done{{0, WcStatus::kWrFlushErr, 0}, {1, WcStatus::kWrFlushErr, 0}, {2, WcStatus::kWrFlushErr, 0}}));
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(requester->sent_bytes(), 0u);
  EXPECT_TRUE(requester->drained());
  ack(kFirstPsn);
  EXPECT_EQ(done().size(), 3u);
}

}  // namespace
}  // namespace nupa::roce::test
