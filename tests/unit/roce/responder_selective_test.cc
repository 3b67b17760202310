// SPDX-License-Identifier: Apache-2.0
/// Tests of a responder whose peer sends selectively: packets out of order, and the answers to them
/// (docs/design/roce.md).
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "responder_fixture.h"
#include "transport/roce/port/packet_pool.h"
#include "transport/roce/protocol/responder.h"

namespace nupa::roce::test {
namespace {

TEST_F(RoceResponder, EarlyPacketsOfANupaPeer_AreKeptAndReported) {
  host->receives = {100, 100, 100, 100};
  EXPECT_EQ(answers_to(nupa(request(Operation::kSendOnly, kFirstPsn + 1, 8))),
            (Texts{"selective ACK 99 msn 0 has +2"}));
  EXPECT_EQ(answers_to(nupa(request(Operation::kSendOnly, kFirstPsn + 3, 8))),
            (Texts{"selective ACK 99 msn 0 has +2 +4"}));
  EXPECT_TRUE(host->received.empty());
  EXPECT_EQ(pool.free(), 6u);
  Packet missing = nupa(request(Operation::kSendOnly, kFirstPsn, 8));
  missing.ack_request = false;
  EXPECT_EQ(answers_to(missing), (Texts{"selective ACK 101 msn 2 has +2"})) << "who waited is told without asking";
  EXPECT_EQ(host->received.size(), 2u);
  EXPECT_EQ(pool.free(), 7u);
  EXPECT_EQ(answers_to(nupa(request(Operation::kSendOnly, kFirstPsn + 2, 8))), (Texts{"selective ACK 103 msn 4 has"}));
  EXPECT_EQ(responder->counters().early, 2u);
  EXPECT_EQ(responder->counters().dropped, 0u);
}

TEST_F(RoceResponder, EarlyPacketsInAnyOrder_AreAllReported) {
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 4, 8)));
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 2, 8)));
  EXPECT_EQ(answers(), (Texts{"selective ACK 99 msn 0 has +3 +5"}));
}

TEST_F(RoceResponder, EarlyPacketTwice_IsKeptOnce) {
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 1, 8)));
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 1, 8)));
  EXPECT_EQ(responder->counters().duplicates, 1u);
  EXPECT_EQ(responder->counters().early, 2u);
  EXPECT_EQ(pool.free(), 7u);
}

TEST_F(RoceResponder, PacketBeyondTheReorderWindow_IsDroppedAndCounted) {
  host->receives.assign(2000, 8);
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + kBitmapBits - 1, 8)));
  EXPECT_EQ(responder->counters().dropped, 0u);
  EXPECT_EQ(answers(), (Texts{"selective ACK 99 msn 0 has +1024"}));
  Packet beyond = nupa(request(Operation::kSendOnly, kFirstPsn + kBitmapBits, 8));
  EXPECT_EQ(answers_to(beyond), Texts{});
  EXPECT_EQ(responder->counters().dropped, 1u);
  // It did not take the place of the one that is expected.
  Packet expected = nupa(request(Operation::kSendOnly, kFirstPsn, 3));
  receive(expected);
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.byte_len, 3u);
}

TEST_F(RoceResponder, EarlyPacketWithoutABuffer_IsDroppedAndCounted) {
  for (uint32_t i = 1; i <= 8; ++i) receive(nupa(request(Operation::kSendOnly, kFirstPsn + i, 8)));
  EXPECT_EQ(pool.free(), 0u);
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 9, 8)));
  EXPECT_EQ(responder->counters().dropped, 1u);
  EXPECT_EQ(answers(), (Texts{"selective ACK 99 msn 0 has +2 +3 +4 +5 +6 +7 +8 +9"}));
  responder->stop();
  EXPECT_EQ(pool.free(), 8u) << "each buffer comes back";
}

TEST_F(RoceResponder, EarlyPackets_AreExecutedInOrder) {
  host->receives = {kMtu * 2};
  receive(nupa(request(Operation::kSendLast, kFirstPsn + 1, 4)));
  receive(nupa(request(Operation::kSendFirst, kFirstPsn, kMtu)));
  ASSERT_EQ(host->received.size(), 1u);
  EXPECT_EQ(host->received[0].message.byte_len, kMtu + 4);
  EXPECT_EQ(answers(), (Texts{"selective ACK 101 msn 1 has"}));
}

TEST_F(RoceResponder, EarlyPacketThatBreaksTheSequence_IsRefusedInOrder) {
  host->receives = {100};
  receive(nupa(request(Operation::kSendMiddle, kFirstPsn + 1, kMtu)));
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 2, 8)));
  receive(nupa(request(Operation::kSendOnly, kFirstPsn, 8)));
  EXPECT_EQ(host->received.size(), 1u);
  ASSERT_EQ(host->refusals.size(), 1u);
  EXPECT_EQ(answers(), (Texts{"selective NAK 100 msn 1 code 1 has"}));
  EXPECT_EQ(pool.free(), 8u);
}

TEST_F(RoceResponder, EarlyMiddleOfAWrite_IsPlacedAtOnce) {
  Packet first = nupa(request(Operation::kWriteFirst, kFirstPsn, kMtu));
  first.length = 4 * kMtu;
  receive(first);
  receive(nupa(request(Operation::kWriteMiddle, kFirstPsn + 2, kMtu)));
  EXPECT_EQ(pool.free(), 8u) << "it needs no buffer";
  EXPECT_EQ(0, std::memcmp(host->memory.data() + 2 * kMtu, pattern_bytes(kMtu).data(), kMtu));
  EXPECT_EQ(host->memory[kMtu], std::byte{0});
  // Others are kept: not of full length, not in the middle, or not of this message.
  receive(nupa(request(Operation::kWriteLast, kFirstPsn + 3, kMtu)));
  EXPECT_EQ(pool.free(), 7u);
  EXPECT_EQ(host->memory[3 * kMtu], std::byte{0});
  receive(nupa(request(Operation::kWriteMiddle, kFirstPsn + 4, kMtu)));
  EXPECT_EQ(pool.free(), 6u) << "beyond the end of this message";
  EXPECT_EQ(host->memory[4 * kMtu], std::byte{0});
  // Middle packets that are in turn have nothing to copy any more.
  receive(nupa(request(Operation::kWriteMiddle, kFirstPsn + 1, kMtu)));
  EXPECT_EQ(0, std::memcmp(host->memory.data() + kMtu, pattern_bytes(kMtu).data(), kMtu));
  EXPECT_EQ(0, std::memcmp(host->memory.data() + 3 * kMtu, pattern_bytes(kMtu).data(), kMtu));
  EXPECT_EQ(host->memory[4 * kMtu], std::byte{0});
}

TEST_F(RoceResponder, EarlyLastWithTheNumberOfAMiddle_IsNotPlaced) {
  Packet first = nupa(request(Operation::kWriteFirst, kFirstPsn, kMtu));
  first.length = 4 * kMtu;
  receive(first);
  receive(nupa(request(Operation::kWriteLast, kFirstPsn + 2, kMtu)));
  EXPECT_EQ(host->memory[2 * kMtu], std::byte{0}) << "it will be refused in its turn";
}

TEST_F(RoceResponder, EarlyMiddleWithTheNumberOfTheLast_IsNotPlaced) {
  Packet first = nupa(request(Operation::kWriteFirst, kFirstPsn, kMtu));
  first.length = 2 * kMtu + 8;
  receive(first);
  receive(nupa(request(Operation::kWriteMiddle, kFirstPsn + 2, kMtu)));
  EXPECT_EQ(host->memory[2 * kMtu], std::byte{0}) << "it would write beyond the message";
  EXPECT_EQ(pool.free(), 7u);
}

TEST_F(RoceResponder, SelectiveAcknowledgement_CarriesItsTriggerAndDelay) {
  ResponderOptions with_window = options;
  with_window.window = 70'000;
  begin(with_window);
  host->receives = {100, 100, 100};
  Packet packet = nupa(request(Operation::kSendOnly, kFirstPsn, 8));
  packet.path = 2;
  receive(packet, true);
  now += 12'345;
  answers();
  const Packet& ack = output.last.packet;
  EXPECT_EQ(ack.opcode, kSelectiveAck);
  EXPECT_EQ(ack.psn, kFirstPsn);
  EXPECT_TRUE(ack.trigger_valid);
  EXPECT_EQ(ack.trigger, kFirstPsn);
  EXPECT_EQ(ack.delay_ns, 12'345u);
  EXPECT_EQ(ack.window, 70'000u);
  EXPECT_EQ(ack.trigger_path, 2);
  EXPECT_EQ(ack.marked, 1u);
  EXPECT_EQ(ack.payload_length, 0u);
  responder->set_window(5);
  packet.path = 1;
  ++packet.psn;
  receive(packet);
  answers();
  EXPECT_EQ(output.last.packet.window, 5u);
  EXPECT_EQ(output.last.packet.marked, 0u) << "each path counts its own marks";
  EXPECT_EQ(output.last.packet.trigger, kFirstPsn + 1);
}

/// A SEND of one packet that does not ask, from a NUPA peer.
class RoceAnswersOutOfOrder : public RoceResponder {
 protected:
  RoceAnswersOutOfOrder() {
    host->receives.assign(200, 8);
    answers_to(nupa(request(Operation::kSendOnly, kFirstPsn, 8)));
  }
  Packet send(uint32_t number, bool asks = false) {
    Packet packet = nupa(request(Operation::kSendOnly, kFirstPsn + number, 8));
    packet.ack_request = asks;
    return packet;
  }
};

TEST_F(RoceAnswersOutOfOrder, PacketsOutOfOrder_AreAnsweredBySixteens) {
  PacketPool large(200);
  responder = std::make_unique<Responder>(*host, options, large);
  answers_to(send(0, true));
  size_t answered = 0;
  for (uint32_t i = 0; i < 160; ++i) answered += answers_to(send(2 + i)).size();
  EXPECT_EQ(answered, 10u);
  EXPECT_EQ(answers_to(send(1)), Texts{}) << "who does not ask waits, though all are executed";
  EXPECT_EQ(host->received.size(), 163u);
  EXPECT_EQ(answers_to(send(162, true)).size(), 1u);
}

TEST_F(RoceAnswersOutOfOrder, PacketOutOfOrder_AfterAPause_IsAnsweredAtOnce) {
  now += 2'499;
  EXPECT_EQ(answers_to(send(2)), Texts{});
  now += 1;
  EXPECT_EQ(answers_to(send(4)), (Texts{"selective ACK 100 msn 1 has +2 +4"}));
  now += 2'499;
  EXPECT_EQ(answers_to(send(6)), Texts{});
  EXPECT_EQ(answers_to(send(1)), Texts{}) << "one that fills a gap is told as late";
  now += 1;
  EXPECT_EQ(answers_to(send(3)), (Texts{"selective ACK 104 msn 5 has +2"}));
}

TEST_F(RoceAnswersOutOfOrder, PacketOutOfOrder_ThatRequestsAnAnswer_IsAnsweredAtOnce) {
  EXPECT_EQ(answers_to(send(2, true)).size(), 1u);
  EXPECT_EQ(answers_to(send(4, true)).size(), 1u);
  EXPECT_EQ(answers_to(send(1)), (Texts{"selective ACK 102 msn 3 has +2"})) << "what asked has been executed now";
}

TEST_F(RoceAnswersOutOfOrder, DuplicatePacket_IsAnsweredAtOnceAndCounted) {
  const auto duplicates = [this] { return output.last.packet.duplicates; };
  EXPECT_TRUE(output.last.packet.duplicates_valid);
  EXPECT_EQ(duplicates(), 0u);
  EXPECT_EQ(answers_to(send(2)), Texts{});
  EXPECT_EQ(answers_to(send(2)).size(), 1u);
  EXPECT_EQ(duplicates(), 1u);
  EXPECT_EQ(answers_to(send(0)).size(), 1u);
  EXPECT_EQ(duplicates(), 2u);
  EXPECT_EQ(answers_to(nupa(read(kFirstPsn + 1, 8))).size(), 2u);
  EXPECT_EQ(answers_to(nupa(read(kFirstPsn + 1, 8))).size(), 1u);
  answers_to(send(3, true));
  EXPECT_EQ(duplicates(), 2u) << "a READ comes again because its response is missing";
}

TEST_F(RoceAnswersOutOfOrder, PacketNumbersOfARead_AreNotReportedAsArrived) {
  answers_to(send(3));
  answers_to(send(5));
  receive(nupa(read(kFirstPsn + 1, 3 * kMtu)));  // takes the number of one that came before it
  now += 3'000;
  EXPECT_EQ(pool.free(), 7u);
  receive(send(6, true));
  answers();
  EXPECT_EQ(text_of(output.last.packet, output.last.payload), "selective ACK 103 msn 2 has +2 +3");
}

TEST_F(RoceResponder, RnrNak_ToANupaPeer_CarriesTheBitmap) {
  receive(nupa(request(Operation::kSendOnly, kFirstPsn, 8)));
  receive(nupa(request(Operation::kSendOnly, kFirstPsn + 1, 8)));
  EXPECT_EQ(answers(), (Texts{"selective RNR 99 msn 0 timer 5 has +2"}));
}

TEST_F(RoceResponder, StandardModeOnly_AnswersANupaPeerByTheStandard) {
  ResponderOptions standard = options;
  standard.mark = 0;
  begin(standard);
  host->receives = {100};
  EXPECT_EQ(answers_to(nupa(request(Operation::kSendOnly, kFirstPsn, 8))), (Texts{"ACK 100 msn 1"}));
  EXPECT_EQ(output.last.packet.mark, 0);
  EXPECT_EQ(answers_to(nupa(request(Operation::kSendOnly, kFirstPsn + 2, 8))), (Texts{"NAK 101 msn 1 code 0"}));
}

}  // namespace
}  // namespace nupa::roce::test
