// SPDX-License-Identifier: Apache-2.0
/// Tests of a responder of UC, and of one whose memory belongs to a stopped process (XRC).
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "responder_fixture.h"
#include "transport/roce/protocol/responder.h"

namespace nupa::roce::test {
namespace {

// ---- UC (9.8).

class RoceUnreliableResponder : public RoceResponder {
 protected:
  RoceUnreliableResponder() {
    ResponderOptions unreliable = standard_options();
    unreliable.service = Service::kUc;
    begin(unreliable);
    host->receives.assign(8, 1024);
  }
};

TEST_F(RoceUnreliableResponder, Ibta982_Requests_AreNotAnswered) {
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), Texts{});
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 7, 8)), Texts{}) << "a gap";
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), Texts{}) << "a repetition";
  EXPECT_EQ(answers_to(request(Operation::kSendMiddle, kFirstPsn + 8, kMtu)), Texts{}) << "out of sequence";
  EXPECT_EQ(host->received.size(), 2u);
  EXPECT_TRUE(host->refusals.empty()) << "and the queue pair goes on";
  EXPECT_EQ(responder->counters().duplicates, 1u);
  EXPECT_EQ(responder->counters().early, 1u);
  EXPECT_EQ(host->established_count, 1);
}

TEST_F(RoceUnreliableResponder, Ibta98221_MessageWithAGap_IsDropped) {
  receive(request(Operation::kSendFirst, kFirstPsn, kMtu));
  EXPECT_TRUE(host->holds);
  receive(request(Operation::kSendMiddle, kFirstPsn + 2, kMtu));
  EXPECT_FALSE(host->holds) << "its receive is given back";
  receive(request(Operation::kSendLast, kFirstPsn + 3, 8));
  EXPECT_TRUE(host->received.empty());
  receive(request(Operation::kSendOnly, kFirstPsn + 4, 8));
  EXPECT_EQ(host->received.size(), 1u) << "the next message begins";
  EXPECT_EQ(host->receives.size(), 7u);
}

TEST_F(RoceUnreliableResponder, MessageWithoutABeginning_IsDropped) {
  receive(request(Operation::kSendLast, kFirstPsn, 8));
  receive(request(Operation::kWriteMiddle, kFirstPsn + 1, kMtu));
  EXPECT_TRUE(host->received.empty());
  EXPECT_TRUE(memory_is_untouched());
  receive(request(Operation::kSendOnly, kFirstPsn + 2, 8));
  EXPECT_EQ(host->received.size(), 1u);
}

TEST_F(RoceUnreliableResponder, NewMessage_BeforeTheEndOfTheLast_ReplacesIt) {
  receive(request(Operation::kSendFirst, kFirstPsn, kMtu));
  receive(request(Operation::kSendOnly, kFirstPsn + 1, 8));
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.byte_len, 8u);
  EXPECT_EQ(host->returned, 1);
}

TEST_F(RoceUnreliableResponder, MessageThatDoesNotFit_IsDroppedAndItsReceiveKept) {
  host->receives = {8, 100};
  receive(request(Operation::kSendOnly, kFirstPsn, 9));
  EXPECT_TRUE(host->received.empty());
  EXPECT_EQ(host->receives.size(), 2u);
  receive(request(Operation::kSendOnly, kFirstPsn + 1, 8));
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].status, WcStatus::kSuccess);
}

TEST_F(RoceUnreliableResponder, MessageWithoutReceive_IsDroppedAndTheNextReceived) {
  host->receives.clear();
  receive(request(Operation::kSendFirst, kFirstPsn, kMtu));
  host->receives = {4096};
  receive(request(Operation::kSendLast, kFirstPsn + 1, 8));
  EXPECT_TRUE(host->received.empty()) << "the rest of a message that began without";
  receive(request(Operation::kSendOnly, kFirstPsn + 2, 8));
  EXPECT_EQ(host->received.size(), 1u);
}

TEST_F(RoceUnreliableResponder, WriteWithAWrongKey_IsDroppedWithoutEvent) {
  Packet packet = request(Operation::kWriteOnly, kFirstPsn, 8);
  packet.rkey = 1;
  EXPECT_EQ(answers_to(packet), Texts{});
  EXPECT_TRUE(host->refusals.empty());
  EXPECT_TRUE(memory_is_untouched());
  receive(request(Operation::kWriteOnly, kFirstPsn + 1, 8));
  EXPECT_FALSE(memory_is_untouched());
}

TEST_F(RoceUnreliableResponder, PacketNumber_OneReorderWindowBack_IsAGap) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  const uint32_t expected = kFirstPsn + 1;
  receive(request(Operation::kSendOnly, expected - (kBitmapBits - 1), 8));
  EXPECT_EQ(host->received.size(), 1u);
  EXPECT_EQ(responder->counters().duplicates, 1u);
  receive(request(Operation::kSendOnly, expected - kBitmapBits, 8));
  EXPECT_EQ(host->received.size(), 2u) << "a sender that began anew";
  EXPECT_EQ(responder->counters().early, 1u);
}

// ---- XRC: the memory is that of another process, which has to copy and is stopped.

class RoceResponderStopped : public RoceResponder {
 protected:
  void SetUp() override {
    ResponderOptions xrc = standard_options();
    xrc.service = Service::kXrc;
    begin(xrc);
    host->receives = {2 * kMtu, 64};
    host->stopped = true;
  }
  /// One turn of the port: nothing is answered, and something waits.
  void expect_silence() {
    responder->transmit(now, output, 1000);
    EXPECT_EQ(output.take(), Texts{});
    EXPECT_TRUE(responder->awaits_memory());
    EXPECT_TRUE(responder->has_output()) << "the port comes back";
  }
};

TEST_F(RoceResponderStopped, Send_MemoryServedLater_IsPlacedOnceAndAcknowledged) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  expect_silence();
  receive(request(Operation::kSendOnly, kFirstPsn, 8));  // its sender repeats it
  expect_silence();
  host->stopped = false;
  EXPECT_EQ(answers(), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->receives.size(), 1u);
  EXPECT_EQ(host->established_count, 1);
  EXPECT_FALSE(responder->awaits_memory());
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 1, 8)), (Texts{"ACK 101 msn 2"}));
}

TEST_F(RoceResponderStopped, RepeatedSend_ServedWhileACopyWaits_IsExecutedOnce) {
  receive(nupa(request(Operation::kSendOnly, kFirstPsn, 8)));
  host->stopped = false;
  receive(nupa(request(Operation::kSendOnly, kFirstPsn, 8)));
  EXPECT_EQ(host->received.size(), 1u);
  EXPECT_FALSE(responder->awaits_memory());
  answers();
  EXPECT_EQ(host->received.size(), 1u);
  EXPECT_EQ(pool.free(), 8u) << "the copy is forgotten";
}

TEST_F(RoceResponderStopped, PacketsBehindAWaitingOne_KeepTheirOrder) {
  receive(nupa(request(Operation::kSendFirst, kFirstPsn, kMtu)));
  receive(nupa(request(Operation::kSendLast, kFirstPsn + 1, 8)));
  responder->transmit(now, output, 1000);
  EXPECT_EQ(output.take(), (Texts{"selective ACK 99 msn 0 has +2"})) << "the first one is not acknowledged";
  EXPECT_TRUE(host->received.empty());
  host->stopped = false;
  answers();
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.byte_len, kMtu + 8);
  EXPECT_EQ(pool.free(), 8u);
}

TEST_F(RoceResponderStopped, Write_MemoryServedLater_IsWrittenAndAcknowledged) {
  receive(request(Operation::kWriteOnly, kFirstPsn, 8));
  expect_silence();
  EXPECT_TRUE(host->refusals.empty());
  host->stopped = false;
  EXPECT_EQ(answers(), (Texts{"ACK 100 msn 1"}));
}

TEST_F(RoceResponderStopped, Atomic_MemoryServedLater_IsExecutedOnce) {
  set_word(10);
  receive(atomic(Operation::kFetchAdd, kFirstPsn, 5));
  receive(atomic(Operation::kFetchAdd, kFirstPsn, 5));
  expect_silence();
  EXPECT_EQ(word(), 10u);
  host->stopped = false;
  EXPECT_EQ(answers(), (Texts{"ATOMIC_ACK 100 found 10 msn 1"}));
  EXPECT_EQ(word(), 15u);
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn, 5)), (Texts{"ATOMIC_ACK 100 found 10 msn 1"}));
  EXPECT_EQ(word(), 15u);
}

TEST_F(RoceResponderStopped, Read_MemoryServedLater_IsAnswered) {
  receive(read(kFirstPsn, 8));
  expect_silence();
  EXPECT_TRUE(host->refusals.empty());
  host->stopped = false;
  EXPECT_EQ(answers(), (Texts{"RESPONSE_ONLY 100 8 bytes msn 1"}));
  EXPECT_FALSE(responder->awaits_memory());
}

TEST_F(RoceResponderStopped, Stop_PacketWaitsForMemory_DropsIt) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  responder->stop();
  EXPECT_FALSE(responder->awaits_memory());
  EXPECT_FALSE(responder->has_output());
  EXPECT_EQ(host->returned, 1);
  EXPECT_EQ(pool.free(), 8u);
}

}  // namespace
}  // namespace nupa::roce::test
