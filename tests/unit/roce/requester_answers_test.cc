// SPDX-License-Identifier: Apache-2.0
/// Tests of the answers that a requester accepts: acknowledgements, NAKs, RNR.
#include <gtest/gtest.h>

#include "core/seam/timers.h"
#include "engine_fixture.h"
#include "requester_fixture.h"
#include "transport/roce/protocol/requester.h"

namespace nupa::roce::test {
namespace {

// ---- Acknowledgements (9.7.5.1, 9.7.5.2).

TEST_F(RoceRequester, Ibta9751_AcknowledgementOfTheLastPacket_CompletesItsRequestAndAllBefore) {
  post(Opcode::kSend, 300);
  post(Opcode::kRdmaWrite, 8);
  EXPECT_EQ(sends().size(), 3u);
  ack(kFirstPsn);
  EXPECT_EQ(done(), Done{}) << "half of the first";
  ack(kFirstPsn + 2);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 300}, {1, WcStatus::kSuccess, 8}}));
  EXPECT_TRUE(requester->idle());
  EXPECT_EQ(requester->deadline(), INT64_MAX);
  EXPECT_EQ(requester->sent_bytes(), 0u);
  EXPECT_EQ(counters().stray, 0u);
}

TEST_F(RoceRequester, Ibta9751_AcknowledgementOfWhatWasNotSent_IsStray) {
  send_first(1, 4);
  ack(kFirstPsn + 1);
  ack(kFirstPsn + 2);
  ack(kFirstPsn + 0x7fffff);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(counters().stray, 3u);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 101 8 bytes asks", "SEND_ONLY 102 8 bytes asks", "SEND_ONLY 103 8 bytes asks"}))
      << "and nothing is repeated for it";
  ack(kFirstPsn);
  EXPECT_EQ(done().size(), 1u);
}

TEST_F(RoceRequester, AnswerBeforeAnythingWasSent_IsStray) {
  post(Opcode::kRdmaRead, 8);
  post(Opcode::kFetchAdd, 8);
  post(Opcode::kSend, 8);
  response(Operation::kReadResponseOnly, kFirstPsn, 8);
  atomic_answer(kFirstPsn + 1, 1);
  ack(kFirstPsn);
  nak(kFirstPsn, NakCode::kRemoteAccess);
  rnr(kFirstPsn, 1);
  EXPECT_EQ(counters().stray, 5u);
  EXPECT_EQ(counters().rnr_naks, 0u);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(sends().size(), 3u);
}

TEST_F(RoceRequester, RequestThatWasPostedButNotSent_IsNotAcknowledged) {
  post(Opcode::kSend, 8);
  ack(kFirstPsn);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(counters().stray, 1u);
}

TEST_F(RoceRequester, RepeatedAcknowledgement_IsIgnored) {
  for (int i = 0; i < 3; ++i) post(Opcode::kSend, 8);
  sends();
  ack(kFirstPsn + 1);
  ack(kFirstPsn + 1);
  EXPECT_EQ(counters().stray, 0u) << "the newest may come twice";
  ack(kFirstPsn);
  EXPECT_EQ(counters().stray, 1u) << "an older one is of long ago";
  EXPECT_EQ(done().size(), 2u);
}

TEST_F(RoceRequester, Ibta97524_ReservedKindOfAcknowledgement_IsIgnored) {
  post(Opcode::kSend, 8);
  sends();
  receive(answer(syndrome(AckKind::kReserved, 0), kFirstPsn));
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(sends(), Texts{});
  // The highest bit is reserved.
  receive(answer(static_cast<uint8_t>(0x80 | syndrome(AckKind::kAck, kAckUnlimited)), kFirstPsn));
  EXPECT_EQ(done().size(), 1u);
}

TEST_F(RoceRequester, AnswerOfAnotherService_IsStray) {
  post(Opcode::kSend, 8);
  sends();
  Packet packet = answer(syndrome(AckKind::kAck, kAckUnlimited), kFirstPsn);
  packet.opcode = opcode_of(Service::kXrc, Operation::kAcknowledge);
  receive(packet);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(counters().stray, 1u);
}

TEST_F(RoceRequester, AfterAnError_AnswersAreIgnored) {
  post(Opcode::kSend, 8);
  post(Opcode::kSend, 8);
  sends();
  nak(kFirstPsn, NakCode::kRemoteAccess);
  EXPECT_EQ(done().size(), 2u);
  ack(kFirstPsn + 1);
  ack(kFirstPsn + 7);
  EXPECT_EQ(done().size(), 2u);
  EXPECT_EQ(counters().stray, 0u);
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(requester->deadline(), INT64_MAX);
}

// ---- NAKs (9.7.5.2.3 ff., table 46).

TEST_F(RoceRequester, Ibta97523_FatalNak_EndsItsRequestWithItsErrorAndFlushesTheRest) {
  const std::pair<NakCode, WcStatus> cases[] = {{NakCode::kInvalidRequest, WcStatus::kRemInvReqErr},
                                                {NakCode::kRemoteAccess, WcStatus::kRemAccessErr},
                                                {NakCode::kRemoteOperation, WcStatus::kRemOpErr},
                                                {NakCode::kInvalidRdRequest, WcStatus::kRemOpErr}};
  for (const auto& [code, status] : cases) {
    begin(options);
    for (int i = 0; i < 4; ++i) post(Opcode::kSend, 8);
    sends();
    nak(kFirstPsn + 2, code);
    EXPECT_EQ(
        done(),
        (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kSuccess, 8}, {2, status, 0}, {3, WcStatus::kWrFlushErr, 0}}))
        << "what came before was executed";
  }
}

TEST_F(RoceRequester, NakWithAReservedCode_IsIgnored) {
  post(Opcode::kSend, 8);
  sends();
  for (uint8_t code = 5; code < 32; ++code) nak(kFirstPsn, code);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(sends(), Texts{});
}

TEST_F(RoceRequester, FatalNak_OfWhatWasNotSentOrIsDone_EndsNothing) {
  send_first(2, 3);
  nak(kFirstPsn + 2, NakCode::kRemoteAccess);
  EXPECT_EQ(counters().stray, 1u);
  ack(kFirstPsn);
  nak(kFirstPsn, NakCode::kRemoteAccess);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}}));
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 102 8 bytes asks"})) << "it goes on";
}

TEST_F(RoceRequester, Ibta97525_SequenceNak_ResendsFromThereOnce) {
  for (int i = 0; i < 3; ++i) post(Opcode::kSend, 8);
  EXPECT_EQ(sends().size(), 3u);
  nak(kFirstPsn + 1, NakCode::kSequence);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}}));
  EXPECT_EQ(counters().resent_sequence, 2u);
  nak(kFirstPsn + 1, NakCode::kSequence);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 101 8 bytes asks", "SEND_ONLY 102 8 bytes asks"}));
  nak(kFirstPsn + 1, NakCode::kSequence);
  EXPECT_EQ(sends(), Texts{}) << "the answers to what was under way say the same again";
  EXPECT_EQ(counters().resent_sequence, 2u);
  nak(kFirstPsn + 2, NakCode::kSequence);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 102 8 bytes asks"}));
  EXPECT_EQ(counters().resent_sequence, 3u);
}

TEST_F(RoceRequester, SequenceNak_OfTheNextNumber_IsStray) {
  send_first(1, 2);
  nak(kFirstPsn + 1, NakCode::kSequence);
  EXPECT_EQ(counters().stray, 1u);
  EXPECT_EQ(done(), Done{}) << "nor does it acknowledge";
}

// ---- RNR (9.7.5.2.8).

TEST_F(RoceRequester, Ibta97528_RnrNaks_OneMoreThanRnrRetry_EndTheRequest) {
  for (uint8_t retries = 0; retries < 7; ++retries) {
    begin(options);
    set_limits({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = retries});
    post(Opcode::kSend, 8);
    for (int nak = 0; nak <= retries; ++nak) {
      EXPECT_EQ(done(), Done{}) << "after " << nak << " of " << retries + 1;
      EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
      rnr(kFirstPsn, 5);
      if (nak < retries) {
        EXPECT_EQ(sends(), Texts{}) << "the responder's timer runs";
        EXPECT_EQ(requester->deadline(), now + core::rnr_timer_ns(5));
        ASSERT_TRUE(wait());
      }
    }
    EXPECT_EQ(done(), (Done{{0, WcStatus::kRnrRetryExcErr, 0}}));
    EXPECT_EQ(counters().rnr_naks, retries + 1u);
    EXPECT_EQ(counters().resent_timeout, 0u);
  }
}

TEST_F(RoceRequester, RnrRetry7_NeverGivesUp) {
  post(Opcode::kSend, 8);
  for (int nak = 0; nak < 1000; ++nak) {
    ASSERT_EQ(sends().size(), 1u);
    rnr(kFirstPsn, 1);
    ASSERT_TRUE(wait());
  }
  EXPECT_EQ(done(), Done{});
}

TEST_F(RoceRequester, Progress_RestartsTheCountOfRnrNaks) {
  set_limits({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = 1});
  for (int i = 0; i < 5; ++i) post(Opcode::kSend, 8);
  for (uint32_t i = 0; i < 5; ++i) {
    sends();
    rnr(kFirstPsn + i, 5);  // which acknowledges those before
    ASSERT_TRUE(wait());
  }
  EXPECT_EQ(done().size(), 4u);
  EXPECT_EQ(done().back().status, WcStatus::kSuccess);
}

TEST_F(RoceRequester, RnrNak_WhileItsTimerRuns_CountsAsNoTry) {
  set_limits({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = 1});
  post(Opcode::kSend, 8);
  sends();
  rnr(kFirstPsn, 5);
  const int64_t until = requester->deadline();
  for (int i = 0; i < 5; ++i) rnr(kFirstPsn, 5);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(requester->deadline(), until);
  now = until - 1;
  requester->on_timer(now);
  EXPECT_EQ(sends(), Texts{});
  now = until;
  requester->on_timer(now);
  EXPECT_EQ(sends().size(), 1u);
}

TEST_F(RoceRequester, RnrNak_OfTheSecondRequest_ResendsFromThere) {
  for (int i = 0; i < 3; ++i) post(Opcode::kSend, 8);
  sends();
  rnr(kFirstPsn + 1, 5);
  EXPECT_EQ(done().size(), 1u);
  wait();
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 101 8 bytes asks", "SEND_ONLY 102 8 bytes asks"}));
}

}  // namespace
}  // namespace nupa::roce::test
