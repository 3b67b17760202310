// SPDX-License-Identifier: Apache-2.0
/// Tests of the answers of a responder: their order, their time and their path.
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "responder_fixture.h"
#include "transport/roce/protocol/responder.h"

namespace nupa::roce::test {
namespace {

// ---- What leaves, and when.

TEST_F(RoceResponder, Ibta97511_AcknowledgementNeverOvertakesResponses) {
  host->receives = {100};
  receive(read(kFirstPsn, 2 * kMtu));
  receive(request(Operation::kSendOnly, kFirstPsn + 2, 8));
  responder->transmit(now, output, 1);
  EXPECT_EQ(output.take(), (Texts{"RESPONSE_FIRST 100 256 bytes msn 1"}));
  EXPECT_EQ(answers(), (Texts{"RESPONSE_LAST 101 256 bytes msn 1", "ACK 102 msn 2"}));
}

TEST_F(RoceResponder, RefusalNeverOvertakesResponses) {
  for (const bool nupa_peer : {false, true}) {
    begin(options);
    const auto of_peer = [&](const Packet& packet) { return nupa_peer ? nupa(packet) : packet; };
    receive(of_peer(read(kFirstPsn, 2 * kMtu)));
    receive(of_peer(request(Operation::kSendMiddle, kFirstPsn + 2, kMtu)));
    responder->transmit(now, output, 1);
    EXPECT_EQ(output.take(), (Texts{"RESPONSE_FIRST 100 256 bytes msn 1"}));
    const Texts rest = answers();
    ASSERT_EQ(rest.size(), 2u);
    EXPECT_EQ(rest[0], "RESPONSE_LAST 101 256 bytes msn 1");
    EXPECT_NE(rest[1].find("NAK"), std::string::npos);
  }
}

TEST_F(RoceResponder, AnswerThatCannotLeaveNow_LeavesOnceLater) {
  host->receives = {100};
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  output.answer = Sent::kNotNow;
  responder->transmit(now, output, 8);
  EXPECT_TRUE(responder->has_output());
  output.answer = Sent::kYes;
  EXPECT_EQ(answers(), (Texts{"ACK 100 msn 1"}));
  EXPECT_FALSE(responder->has_output());
  EXPECT_EQ(answers(), Texts{});
  receive(read(kFirstPsn + 1, 8));
  output.answer = Sent::kNotNow;
  responder->transmit(now, output, 8);
  output.answer = Sent::kYes;
  EXPECT_EQ(answers(), (Texts{"RESPONSE_ONLY 101 8 bytes msn 2"}));
}

TEST_F(RoceResponder, Transmit_Budget_IsKept) {
  receive(read(kFirstPsn, 10 * kMtu));
  EXPECT_TRUE(responder->transmit(now, output, 4));
  EXPECT_EQ(output.take().size(), 4u);
  EXPECT_TRUE(responder->transmit(now, output, 5));
  EXPECT_EQ(output.take().size(), 5u);
  EXPECT_FALSE(responder->transmit(now, output, 5));
  EXPECT_EQ(output.take().size(), 1u);
}

TEST_F(RoceResponder, Answers_GoToThePeerWithTheConnectionsService) {
  ResponderOptions xrc = options;
  xrc.service = Service::kXrc;
  xrc.pkey = 0x7fff;
  begin(xrc);
  host->receives = {100};
  receive(request(Operation::kSendOnly, kFirstPsn, 8));
  receive(read(kFirstPsn + 1, 8));
  receive(atomic(Operation::kFetchAdd, kFirstPsn + 2, 1));
  while (responder->transmit(now, output, 8)) {
  }
  ASSERT_EQ(output.packets.size(), 2u);
  for (const RecordingOutput::Sent& sent : output.packets) {
    EXPECT_EQ(sent.packet.dest_qpn, kPeerQpn);
    EXPECT_EQ(sent.packet.pkey, 0x7fff);
    EXPECT_EQ(sent.packet.mark, kNupaMark);
    EXPECT_EQ(service_of(sent.packet.opcode), Service::kXrc);
    EXPECT_FALSE(sent.packet.ack_request);
  }
}

// ---- Congestion (annex A17.9) and paths.

TEST_F(RoceResponder, IbtaA179_CongestedPackets_CauseOneNotificationPer50Microseconds) {
  host->receives.assign(10, 100);
  Packet packet = request(Operation::kSendOnly, kFirstPsn, 8);
  packet.ack_request = false;
  receive(packet, true);
  EXPECT_EQ(answers(), (Texts{"CNP"}));
  EXPECT_EQ(output.last.packet.psn, 0u);
  EXPECT_EQ(output.last.packet.dest_qpn, kPeerQpn);
  now += 49'999;
  ++packet.psn;
  receive(packet, true);
  EXPECT_EQ(answers(), Texts{});
  now += 1;
  ++packet.psn;
  receive(packet, true);
  EXPECT_EQ(answers(), (Texts{"CNP"}));
  EXPECT_EQ(responder->counters().marked, 3u);
  ++packet.psn;
  now += 60'000;
  receive(packet, false);
  EXPECT_EQ(answers(), Texts{});
  EXPECT_EQ(responder->counters().marked, 3u);
}

TEST_F(RoceResponder, Answers_LeaveByThePathOfTheRequest) {
  host->receives = {100};
  Packet send = request(Operation::kSendOnly, kFirstPsn, 8);
  send.path = 2;
  receive(send, true);
  Packet plain = read(kFirstPsn + 1, 8);
  plain.path = 1;
  receive(plain);
  answers();
  receive(send);  // again
  while (responder->transmit(now, output, 8)) {
  }
  ASSERT_EQ(output.packets.size(), 1u);
  EXPECT_EQ(output.packets[0].path, 2);
  output.take();
  receive(plain);
  while (responder->transmit(now, output, 8)) {
  }
  ASSERT_EQ(output.packets.size(), 1u);
  EXPECT_EQ(output.packets[0].path, 1) << "the response, too";
}

TEST_F(RoceResponder, RepeatedRead_StillBeingAnswered_IsAnsweredByTheNewPath) {
  Packet request = read(kFirstPsn, 3 * kMtu);
  request.path = 1;
  receive(request);
  responder->transmit(now, output, 1);
  ASSERT_EQ(output.packets.size(), 1u);
  EXPECT_EQ(output.packets[0].path, 1);
  output.take();
  request.path = 2;
  receive(request);
  while (responder->transmit(now, output, 8)) {
  }
  ASSERT_EQ(output.packets.size(), 3u);
  for (const auto& sent : output.packets) EXPECT_EQ(sent.path, 2);
}

TEST_F(RoceResponder, CongestionNotification_LeavesByThePathOfTheMarkedPacket) {
  host->receives = {100, 100};
  Packet packet = request(Operation::kSendOnly, kFirstPsn, 8);
  packet.ack_request = false;
  packet.path = 3;
  receive(packet, true);
  packet.path = 1;
  ++packet.psn;
  receive(packet, false);
  responder->transmit(now, output, 8);
  ASSERT_EQ(output.packets.size(), 1u);
  EXPECT_EQ(output.packets[0].path, 3);
}

TEST_F(RoceResponder, PathProbe_IsEchoedOnceByItsPath) {
  Packet probe;
  probe.opcode = kPathProbe;
  probe.mark = kNupaMark;
  for (const uint8_t path : {uint8_t{3}, uint8_t{1}}) {
    probe.path = path;
    probe.psn = 70 + path;
    receive(probe);
  }
  while (responder->transmit(now, output, 8)) {
  }
  ASSERT_EQ(output.packets.size(), 2u);
  EXPECT_EQ(output.packets[0].path, 1);
  EXPECT_EQ(output.packets[1].path, 3);
  EXPECT_EQ(output.take(), (Texts{"ECHO 71", "ECHO 73"}));
  EXPECT_EQ(answers(), Texts{});
  ResponderOptions standard = options;
  standard.mark = 0;
  begin(standard);
  EXPECT_EQ(answers_to(probe), Texts{}) << "an end that speaks the standard only";
}

}  // namespace
}  // namespace nupa::roce::test
