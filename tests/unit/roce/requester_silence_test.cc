// SPDX-License-Identifier: Apache-2.0
/// Tests of a requester without an answer: retransmissions, their limits, and peers whose process may have exited.
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "requester_fixture.h"
#include "transport/roce/protocol/requester.h"

namespace nupa::roce::test {
namespace {

// ---- Silence (9.7.6.1.3).

TEST_F(RoceRequester, Ibta97613_RetryCntRetransmissions_ThenTheRequestFails) {
  for (const uint8_t retries : {0, 1, 2, 7}) {
    begin(options);
    set_limits({.timeout = kTimeoutCode, .retry_cnt = retries, .rnr_retry = 7});
    post(Opcode::kSend, 300);
    post(Opcode::kSend, 8);
    for (int round = 0; round <= retries; ++round) {
      EXPECT_EQ(sends(),
                (Texts{"SEND_FIRST 100 256 bytes asks", "SEND_LAST 101 44 bytes asks", "SEND_ONLY 102 8 bytes asks"}))
          << "round " << round << " of " << retries + 1;
      EXPECT_EQ(done(), Done{});
      EXPECT_EQ(counters().resent_timeout, 3u * static_cast<uint32_t>(round));
      const int64_t pace = kTimeout * (round == 0 ? 1 : round == 1 ? 2 : 4);
      EXPECT_EQ(requester->deadline(), now + pace);
      now += pace - 1;
      requester->on_timer(now);
      EXPECT_EQ(sends(), Texts{}) << "one nanosecond early";
      ++now;
      requester->on_timer(now);
    }
    EXPECT_EQ(done(), (Done{{0, WcStatus::kRetryExcErr, 0}, {1, WcStatus::kWrFlushErr, 0}}));
  }
}

// ---- A host reports that the process has exited, or the report is forged.

TEST_F(RoceRequester, DoubtedPeer_OneMoreUnansweredRetransmission_EndsTheRequest) {
  post(Opcode::kSend, 8);
  post(Opcode::kSend, 8);
  sends();
  requester->doubt_peer();
  requester->doubt_peer();  // what is said again and again says no more
  EXPECT_EQ(requester->deadline(), now + kTimeout);
  ASSERT_TRUE(wait());
  EXPECT_EQ(done(), Done{}) << "a forged message alone ends nothing";
  EXPECT_EQ(sends().size(), 2u);
  requester->doubt_peer();
  EXPECT_EQ(requester->deadline(), now + kTimeout) << "an answer has its time";
  ASSERT_TRUE(wait());
  EXPECT_EQ(done(), (Done{{0, WcStatus::kRetryExcErr, 0}, {1, WcStatus::kWrFlushErr, 0}}));
}

TEST_F(RoceRequester, DoubtedPeer_Answers_EndsTheDoubt) {
  for (const bool asked : {false, true}) {
    begin(options);
    post(Opcode::kSend, 8);
    post(Opcode::kSend, 8);
    sends();
    requester->doubt_peer();
    if (asked) {
      ASSERT_TRUE(wait());
      sends();
    }
    ack(kFirstPsn);
    for (int round = 0; round < 7; ++round) {
      ASSERT_TRUE(wait());
      sends();
      EXPECT_EQ(done().size(), 1u) << "it has all its repetitions";
    }
    ASSERT_TRUE(wait());
    EXPECT_EQ(done().back().status, WcStatus::kRetryExcErr);
  }
}

TEST_F(RoceRequester, DoubtPeer_NothingUnderWay_IsIgnored) {
  requester->doubt_peer();
  post(Opcode::kSend, 8);
  sends();
  for (int round = 0; round < 7; ++round) {
    ASSERT_TRUE(wait());
    sends();
    EXPECT_EQ(done(), Done{});
  }
}

TEST_F(RoceRequester, DoubtedPeer_WithoutATimeout_IsStillAsked) {
  set_limits({.timeout = 0, .retry_cnt = 7, .rnr_retry = 7});
  post(Opcode::kSend, 8);
  sends();
  EXPECT_EQ(requester->deadline(), INT64_MAX);
  requester->doubt_peer();
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends().size(), 1u);
  ASSERT_TRUE(wait());
  EXPECT_EQ(done(), (Done{{0, WcStatus::kRetryExcErr, 0}}));
}

TEST_F(RoceRequester, IsUnderWay_UnansweredPacket_IsTrue) {
  EXPECT_FALSE(requester->is_under_way(kFirstPsn));
  send_first(2, 3);
  EXPECT_FALSE(requester->is_under_way(kFirstPsn - 1));
  EXPECT_TRUE(requester->is_under_way(kFirstPsn));
  EXPECT_TRUE(requester->is_under_way(kFirstPsn + 1));
  EXPECT_FALSE(requester->is_under_way(kFirstPsn + 2)) << "it was not sent";
  ack(kFirstPsn);
  EXPECT_FALSE(requester->is_under_way(kFirstPsn)) << "it was answered";
}

TEST_F(RoceRequester, Progress_RestartsTheCountOfRetries) {
  set_limits({.timeout = kTimeoutCode, .retry_cnt = 1, .rnr_retry = 7});
  for (int i = 0; i < 4; ++i) post(Opcode::kSend, 8);
  for (uint32_t i = 0; i < 4; ++i) {
    sends();
    wait();
    sends();
    ack(kFirstPsn + i);
    EXPECT_EQ(requester->deadline(), i == 3 ? INT64_MAX : now + kTimeout);
  }
  EXPECT_EQ(done().size(), 4u);
  EXPECT_EQ(done().back().status, WcStatus::kSuccess);
}

TEST_F(RoceRequester, AcknowledgedDuringAGoBack_IsNotResent) {
  for (int i = 0; i < 4; ++i) post(Opcode::kSend, 8);
  ASSERT_EQ(sends().size(), 4u);
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(1), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  ack(kFirstPsn + 2);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 103 8 bytes asks"}));
  ack(kFirstPsn + 3);
  EXPECT_EQ(done().size(), 4u);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 104 8 bytes asks"}));
}

TEST_F(RoceRequester, RepeatedAcknowledgement_IsNoProgress) {
  post(Opcode::kSend, 8);
  post(Opcode::kSend, 8);
  sends();
  ack(kFirstPsn);
  const int64_t deadline = requester->deadline();
  now += kTimeout / 2;
  ack(kFirstPsn);
  EXPECT_EQ(requester->deadline(), deadline);
}

TEST_F(RoceRequester, TimeoutZero_WaitsForEver) {
  set_limits({.timeout = 0, .retry_cnt = 0, .rnr_retry = 7});
  post(Opcode::kSend, 8);
  sends();
  EXPECT_EQ(requester->deadline(), INT64_MAX);
  now += int64_t{1} << 50;
  requester->on_timer(now);
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(sends(), Texts{});
}

TEST_F(RoceSelectiveRequester, Ibta97613_FourTimeoutsPerTry_ThenTheRequestFails) {
  for (const uint8_t retries : {0, 1, 3, 7}) {
    begin(options);
    set_limits({.timeout = kTimeoutCode, .retry_cnt = retries, .rnr_retry = 7});
    receive(selective(kFirstPsn - 1));
    send_messages(1);
    int rounds = 0;
    for (; done().empty() && rounds < 100; ++rounds) {
      ASSERT_TRUE(wait());
      sends();
    }
    EXPECT_EQ(done(), (Done{{0, WcStatus::kRetryExcErr, 0}}));
    EXPECT_EQ(now, kStart + (retries + 1) * 4 * kTimeout);
    EXPECT_EQ(rounds, (retries + 1) * 4);
    EXPECT_EQ(counters().resent_timeout, static_cast<uint32_t>(rounds - 1));
  }
}

TEST_F(RoceSelectiveRequester, Ibta97613_TimeInWhichTheSenderDidNotRun_IsNoTimeout) {
  constexpr uint8_t kRetries = 3;
  set_limits({.timeout = kTimeoutCode, .retry_cnt = kRetries, .rnr_retry = 7});
  receive(selective(kFirstPsn - 1));
  send_messages(1);
  now += 100 * kTimeout;  // stopped, say
  requester->on_timer(now);
  constexpr int kRounds = (kRetries + 1) * 4 - 1;
  for (int round = 0; round < kRounds; ++round) {
    EXPECT_EQ(sends().size(), 1u) << round;
    EXPECT_EQ(done(), Done{}) << round;
    ASSERT_TRUE(wait());
  }
  EXPECT_EQ(done(), (Done{{0, WcStatus::kRetryExcErr, 0}}));
  EXPECT_EQ(counters().resent_timeout, kRounds);
}

TEST_F(RoceSelectiveRequester, DoubtedPeer_HasAFixedTimeToAnswer) {
  constexpr uint8_t kLong = 20;  // 4.3 s
  set_limits({.timeout = kLong, .retry_cnt = 7, .rnr_retry = 7});
  send_messages(1);
  now += 10'000;
  Packet ack = selective(kFirstPsn);
  ack.trigger_valid = true;
  ack.trigger = kFirstPsn;
  receive(ack);
  ASSERT_EQ(done().size(), 1u);
  ASSERT_TRUE(requester->paths().measured());
  send_messages(1);
  requester->doubt_peer();
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends().size(), 1u);
  const int64_t asked = now;
  while (done().size() == 1) {
    ASSERT_TRUE(wait());
    EXPECT_EQ(sends(), Texts{});
  }
  EXPECT_EQ(now, asked + 200'000'000) << "it may only be without a processor";
  EXPECT_EQ(done().back().status, WcStatus::kRetryExcErr);
}

TEST_F(RoceSelectiveRequester, TimeoutZero_ResendsForEver) {
  set_limits({.timeout = 0, .retry_cnt = 0, .rnr_retry = 7});
  send_messages(1);
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(wait());
    EXPECT_EQ(sends().size(), 1u);
  }
  EXPECT_EQ(done(), Done{});
}

TEST_F(RoceSelectiveRequester, Timeout_EachAfterTheFirst_DoublesUpTo64Times) {
  set_limits({.timeout = 0, .retry_cnt = 0, .rnr_retry = 7});
  send_messages(1);
  const int64_t timeout = requester->deadline() - now;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(wait());
    EXPECT_EQ(sends().size(), 1u);
    EXPECT_EQ(requester->deadline() - now, timeout << std::min(i, 6)) << i;
  }
}

}  // namespace
}  // namespace nupa::roce::test
