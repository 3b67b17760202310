// SPDX-License-Identifier: Apache-2.0
/// Tests of a responder with requests that are repeated, early, or without a posted receive.
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "responder_fixture.h"
#include "transport/roce/protocol/responder.h"

namespace nupa::roce::test {
namespace {

// ---- RNR (9.7.5.2.8).

TEST_F(RoceResponder, Ibta97528_NoReceive_IsAnRnrNakWithTheQueuePairsTimer) {
  host->rnr_code = 19;
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"RNR 100 msn 0 timer 19"}));
  EXPECT_EQ(responder->counters().rnr_naks, 1u);
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 1, 8)), Texts{}) << "it is known to be out of turn";
  EXPECT_TRUE(host->received.empty());
  host->receives = {100, 100};
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 2, 8)), (Texts{"NAK 101 msn 1 code 0"}))
      << "the gap after it is a new one";
}

TEST_F(RoceResponder, RepeatedSend_AfterAnRnrNak_IsAcknowledged) {
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  host->receives = {100};
  Packet again = request(Operation::kSendOnly, kFirstPsn, 8);
  again.ack_request = false;
  // The RNR NAK has not left yet, and would be wrong by now.
  EXPECT_EQ(answers_to(again), (Texts{"ACK 100 msn 1"}));
}

TEST_F(RoceResponder, WriteWithImmediateWithoutReceive_WritesNothing) {
  EXPECT_EQ(answers_to(request(Operation::kWriteOnlyImm, kFirstPsn, 8)), (Texts{"RNR 100 msn 0 timer 5"}));
  EXPECT_TRUE(memory_is_untouched());
  host->receives = {0};
  Packet packet = request(Operation::kWriteOnlyImm, kFirstPsn, 8);
  packet.imm = 99;
  EXPECT_EQ(answers_to(packet), (Texts{"ACK 100 msn 1"}));
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.opcode, WcOpcode::kRecvRdmaWithImm);
  EXPECT_EQ(host->received[0].message.imm_data, 99u);
  EXPECT_EQ(host->received[0].message.byte_len, 8u);
}

TEST_F(RoceResponder, LastPacketOfAWriteWithImmediate_AfterAnRnrNak_IsAccepted) {
  Packet first = request(Operation::kWriteFirst, kFirstPsn, kMtu);
  first.length = kMtu + 8;
  receive(first);
  answers();
  EXPECT_EQ(answers_to(request(Operation::kWriteLastImm, kFirstPsn + 1, 8)), (Texts{"RNR 101 msn 0 timer 5"}));
  host->receives = {0};
  EXPECT_EQ(answers_to(request(Operation::kWriteLastImm, kFirstPsn + 1, 8)), (Texts{"ACK 101 msn 1"}));
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.byte_len, kMtu + 8);
}

TEST_F(RoceResponder, XrcRequest_UnknownQueue_IsAnInvalidRequest) {
  ResponderOptions xrc = options;
  xrc.service = Service::kXrc;
  begin(xrc);
  host->receives = {100};
  Packet packet = request(Operation::kSendOnly, kFirstPsn, 8);
  packet.srqn = 77;
  receive(packet);
  EXPECT_EQ(host->taken_srqn, 77u);
  host->no_queue = true;
  answers();
  const Texts answered = answers_to(request(Operation::kSendOnly, kFirstPsn + 1, 8));
  expect_invalid(answered, kFirstPsn + 1, 1, "no such queue");
}

/// The process that may own the queue has not answered yet: the requester asks again.
TEST_F(RoceResponder, XrcRequest_QueueNotKnownYet_IsAnRnrNak) {
  ResponderOptions xrc = options;
  xrc.service = Service::kXrc;
  const Operation operations[] = {Operation::kSendOnly, Operation::kWriteOnly, Operation::kReadRequest,
                                  Operation::kFetchAdd};
  for (const Operation operation : operations) {
    begin(xrc);
    host->receives = {100};
    host->queue_comes_later = true;
    const bool is_atomic = operation == Operation::kFetchAdd;
    const auto packet = [&] { return is_atomic ? atomic(operation, kFirstPsn, 7) : request(operation, kFirstPsn, 8); };
    EXPECT_EQ(answers_to(packet()), (Texts{"RNR 100 msn 0 timer 5"})) << name_of(operation);
    EXPECT_TRUE(host->refusals.empty());
    host->queue_comes_later = false;
    const Texts answered = answers_to(packet());
    ASSERT_FALSE(answered.empty()) << name_of(operation);
    EXPECT_EQ(answered[0].find("RNR"), std::string::npos);
    EXPECT_TRUE(host->refusals.empty());
  }
}

// ---- Sequence numbers (9.7.1, 9.7.5.2.5).

TEST_F(RoceResponder, Ibta97525_Gap_CausesOneNak) {
  host->receives = {100, 100, 100, 100};
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 1, 8)), (Texts{"NAK 100 msn 0 code 0"}));
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 2, 8)), Texts{});
  EXPECT_TRUE(host->received.empty()) << "what is early is not executed";
  EXPECT_TRUE(host->refusals.empty());
  EXPECT_EQ(responder->counters().early, 2u);
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 2, 8)), (Texts{"NAK 101 msn 1 code 0"}));
  EXPECT_EQ(host->received.size(), 1u);
}

TEST_F(RoceResponder, MissingPacket_BeforeTheNakLeft_IsAcknowledged) {
  host->receives = {100};
  receive(request(Operation::kSendOnly, kFirstPsn + 1, 8));
  Packet missing = request(Operation::kSendOnly, kFirstPsn, 8);
  missing.ack_request = false;
  EXPECT_EQ(answers_to(missing), (Texts{"ACK 100 msn 1"}));
}

TEST_F(RoceResponder, Ibta971_PacketNumbers_HalfIsPastAndHalfIsToCome) {
  host->receives = {100};
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  answers();
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 1 + 0x7fffff, 8)), (Texts{"NAK 101 msn 1 code 0"}));
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn + 1 + 0x800000, 8)), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(responder->counters().early, 1u);
  EXPECT_EQ(responder->counters().duplicates, 1u);
}

TEST_F(RoceResponder, PacketNumbers_WrapAfter24Bits) {
  ResponderOptions wrapping = options;
  wrapping.first_psn = kPsnMask;
  begin(wrapping);
  host->receives = {100, 100};
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kPsnMask, 8)), (Texts{"ACK 16777215 msn 1"}));
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, 0, 8)), (Texts{"ACK 0 msn 2"}));
}

// ---- Repetitions (9.7.5.1.1 ff.).

TEST_F(RoceResponder, Ibta97511_RepeatedSend_IsAcknowledgedAndNotExecuted) {
  host->receives = {100, 100, 100};
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  receive(request(Operation::kSendOnly, kFirstPsn + 1, 8));
  answers();
  EXPECT_EQ(answers_to(request(Operation::kSendOnly, kFirstPsn, 8)), (Texts{"ACK 101 msn 2"}))
      << "with the number of the newest";
  EXPECT_EQ(host->received.size(), 2u);
  EXPECT_EQ(responder->counters().duplicates, 1u);
  EXPECT_EQ(responder->counters().dropped, 0u);
}

TEST_F(RoceResponder, RepeatedWrite_IsAcknowledgedAndNotExecuted) {
  receive(request(Operation::kWriteOnly, kFirstPsn, 8));
  set_word(42);
  answers();
  EXPECT_EQ(answers_to(request(Operation::kWriteOnly, kFirstPsn, 8)), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(word(), 42u);
}

TEST_F(RoceResponder, RepeatedRead_IsAnsweredAgainFromMemory) {
  set_word(1);
  EXPECT_EQ(answers_to(read(kFirstPsn, 8)), (Texts{"RESPONSE_ONLY 100 8 bytes msn 1"}));
  set_word(2);
  EXPECT_EQ(answers_to(read(kFirstPsn, 8)), (Texts{"RESPONSE_ONLY 100 8 bytes msn 1"}));
  EXPECT_EQ(output.last.payload[0], std::byte{2});
  EXPECT_EQ(responder->counters().duplicates, 1u);
  EXPECT_EQ(responder->counters().dropped, 0u);
  EXPECT_EQ(answers_to(read(kFirstPsn + 1, 8)), (Texts{"RESPONSE_ONLY 101 8 bytes msn 2"}))
      << "a repetition is no new message";
}

TEST_F(RoceResponder, RepeatedPartOfARead_IsAnsweredFromThere) {
  receive(read(kFirstPsn, 3 * kMtu));
  answers();
  EXPECT_EQ(answers_to(read(kFirstPsn + 1, 2 * kMtu, kBase + kMtu)),
            (Texts{"RESPONSE_FIRST 101 256 bytes msn 1", "RESPONSE_LAST 102 256 bytes msn 1"}));
}

TEST_F(RoceResponder, RepeatedRead_BeyondTheOriginal_IsDroppedAndCounted) {
  receive(read(kFirstPsn, 2 * kMtu));
  answers();
  EXPECT_EQ(answers_to(read(kFirstPsn, 2 * kMtu + 1)), Texts{}) << "one packet more than there were";
  EXPECT_EQ(responder->counters().dropped, 1u);
  EXPECT_EQ(answers_to(read(kFirstPsn, 2 * kMtu)).size(), 2u);
  EXPECT_EQ(responder->counters().dropped, 1u);
}

TEST_F(RoceResponder, RepeatedRead_StillBeingAnswered_RestartsOnce) {
  receive(read(kFirstPsn, 3 * kMtu));
  EXPECT_TRUE(responder->transmit(now, output, 2));
  EXPECT_EQ(output.take(), (Texts{"RESPONSE_FIRST 100 256 bytes msn 1", "RESPONSE_MIDDLE 101 256 bytes"}));
  EXPECT_EQ(answers_to(read(kFirstPsn, 3 * kMtu)),
            (Texts{"RESPONSE_FIRST 100 256 bytes msn 1", "RESPONSE_MIDDLE 101 256 bytes",
                   "RESPONSE_LAST 102 256 bytes msn 1"}));
  receive(read(kFirstPsn + 3, 3 * kMtu));
  responder->transmit(now, output, 1);
  EXPECT_EQ(output.take().size(), 1u);
  EXPECT_EQ(answers_to(read(kFirstPsn + 5, kMtu, kBase + 2 * kMtu)),
            (Texts{"RESPONSE_MIDDLE 104 256 bytes", "RESPONSE_LAST 105 256 bytes msn 2"}))
      << "what is to come anyway comes once, and nothing is skipped";
}

TEST_F(RoceResponder, RepeatedRestOfARead_StillBeingAnswered_BeginsWithAFirst) {
  for (const uint32_t sent : {1u, 2u, 3u}) {
    const std::string why = std::to_string(sent) + " responses have left";
    begin(options);
    for (uint32_t i = 0; i < 4; ++i) host->memory[i * kMtu] = static_cast<std::byte>(i);
    receive(read(kFirstPsn, 4 * kMtu));
    responder->transmit(now, output, sent);
    EXPECT_EQ(output.take().size(), sent) << why;
    receive(read(kFirstPsn + 1, 3 * kMtu, kBase + kMtu));
    responder->transmit(now, output, 1);
    EXPECT_EQ(output.take(), (Texts{"RESPONSE_FIRST 101 256 bytes msn 1"})) << why;
    EXPECT_EQ(output.last.payload[0], std::byte{1}) << why;
    EXPECT_EQ(answers_to(read(kFirstPsn + 3, kMtu, kBase + 3 * kMtu)),
              (Texts{"RESPONSE_MIDDLE 102 256 bytes", "RESPONSE_LAST 103 256 bytes msn 1"}))
        << why << ": what is to come anyway comes once";
    EXPECT_EQ(output.last.payload[0], std::byte{3}) << why;
  }
  receive(read(kFirstPsn + 4, 2 * kMtu));
  responder->transmit(now, output, 1);
  output.take();
  EXPECT_EQ(answers_to(read(kFirstPsn + 5, kMtu, kBase + kMtu)), (Texts{"RESPONSE_ONLY 105 256 bytes msn 2"}));
}

TEST_F(RoceResponder, RepeatedRead_KeyIsRevoked_IsDroppedWithoutANak) {
  receive(read(kFirstPsn, 8));
  answers();
  host->key = 1;
  EXPECT_EQ(answers_to(read(kFirstPsn, 8)), Texts{});
  EXPECT_TRUE(host->refusals.empty());
  host->key = kKey;
  EXPECT_EQ(answers_to(read(kFirstPsn + 1, 8)), (Texts{"RESPONSE_ONLY 101 8 bytes msn 2"}));
}

TEST_F(RoceResponder, Ibta97513_RepeatedAtomic_GetsItsFirstResultAndIsNotExecuted) {
  set_word(10);
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn, 5)), (Texts{"ATOMIC_ACK 100 found 10 msn 1"}));
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn + 1, 7)), (Texts{"ATOMIC_ACK 101 found 15 msn 2"}));
  EXPECT_EQ(word(), 22u);
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn, 5)), (Texts{"ATOMIC_ACK 100 found 10 msn 1"}));
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn + 1, 7)), (Texts{"ATOMIC_ACK 101 found 15 msn 2"}));
  EXPECT_EQ(word(), 22u);
  EXPECT_EQ(responder->counters().duplicates, 2u);
  EXPECT_EQ(responder->counters().dropped, 0u);
}

TEST_F(RoceResponder, AtomicResults_AreKeptForTheLast32) {
  constexpr uint32_t kRemembered = 32;
  for (uint32_t i = 0; i <= kRemembered; ++i)
    ASSERT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn + i, 1)).size(), 1u);
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn + 1, 1)), (Texts{"ATOMIC_ACK 101 found 1 msn 2"}));
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn, 1)), Texts{}) << "older than what is remembered";
  EXPECT_EQ(responder->counters().dropped, 1u);
  EXPECT_EQ(word(), kRemembered + 1);
}

TEST_F(RoceResponder, RepeatedAtomic_NumberOfAnotherRequest_IsDropped) {
  host->receives = {100};
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  answers();
  EXPECT_EQ(answers_to(atomic(Operation::kFetchAdd, kFirstPsn, 5)), Texts{}) << "a SEND had that number";
  EXPECT_EQ(responder->counters().dropped, 1u);
  EXPECT_EQ(word(), 0u);
}

TEST_F(RoceResponder, RepeatedAtomicWrite_IsAnsweredAgainAndNotExecuted) {
  receive(request(Operation::kAtomicWrite, kFirstPsn, 8));
  answers();
  set_word(3);
  EXPECT_EQ(answers_to(request(Operation::kAtomicWrite, kFirstPsn, 8)), (Texts{"RESPONSE_ONLY 100 0 bytes msn 1"}));
  EXPECT_EQ(word(), 3u);
}

}  // namespace
}  // namespace nupa::roce::test
