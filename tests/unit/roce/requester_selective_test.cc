// SPDX-License-Identifier: Apache-2.0
/// Tests of a requester whose peer acknowledges selectively: what it resends (docs/design/roce.md).
#include <gtest/gtest.h>

#include "core/seam/timers.h"
#include "engine_fixture.h"
#include "requester_fixture.h"
#include "transport/roce/protocol/requester.h"

namespace nupa::roce::test {
namespace {

TEST_F(RoceSelectiveRequester, SelectiveAcknowledgement_StandardModeOnly_IsIgnored) {
  EXPECT_TRUE(requester->selective());
  RequesterOptions standard = options;
  standard.mark = 0;
  begin(standard);
  post(Opcode::kSend, 8);
  sends();
  receive(selective(kFirstPsn));
  EXPECT_FALSE(requester->selective());
  EXPECT_EQ(done(), Done{}) << "an end that speaks the standard only";
}

TEST_F(RoceSelectiveRequester, SelectiveAcknowledgement_OfUnsentPackets_IsStray) {
  send_first(2, 4);
  receive(selective(kFirstPsn + 2));
  receive(selective(kFirstPsn + 500));
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(counters().stray, 2u);
  receive(selective(kFirstPsn + 1));
  EXPECT_EQ(done().size(), 2u);
  receive(selective(kFirstPsn + 1));
  EXPECT_EQ(counters().stray, 2u) << "the newest again";
  receive(selective(kFirstPsn));
  EXPECT_EQ(counters().stray, 3u);
}

TEST_F(RoceSelectiveRequester, ArrivedPackets_CompleteInOrder) {
  send_messages(4);
  receive(selective(kFirstPsn - 1, {2, 3}));
  EXPECT_EQ(done(), Done{}) << "nothing has been executed";
  receive(selective(kFirstPsn, {2}));
  EXPECT_EQ(done().size(), 1u);
  receive(selective(kFirstPsn + 3));
  EXPECT_EQ(done().size(), 4u);
}

TEST_F(RoceSelectiveRequester, BitmapBitsOfUnsentPackets_AreIgnored) {
  send_messages(2);
  receive(selective(kFirstPsn - 1, {3, 4, 100, 1024}));
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 102 8 bytes asks"})) << "it has not arrived before it was sent";
  receive(selective(kFirstPsn + 1));
  EXPECT_EQ(done().size(), 2u);
}

TEST_F(RoceSelectiveRequester, PacketOvertakenByTheReorderTime_IsResent) {
  constexpr int64_t kReorderNs = 10'000;  // the least
  for (const bool late_enough : {false, true}) {
    begin(options);
    receive(selective(kFirstPsn - 1));
    send_messages(1);
    now += kReorderNs + late_enough;
    send_messages(1);
    receive(selective(kFirstPsn - 1, {2}));
    EXPECT_EQ(requester->lost(), late_enough ? 1u : 0u);
    EXPECT_EQ(sends(), late_enough ? Texts{"SEND_ONLY 100 8 bytes asks"} : Texts{});
    EXPECT_EQ(counters().resent_selective, late_enough ? 1u : 0u);
    EXPECT_EQ(requester->lost(), 0u);
    receive(selective(kFirstPsn + 1));
    EXPECT_EQ(done().size(), 2u);
    EXPECT_EQ(requester->sent_bytes(), 0u);
  }
}

TEST_F(RoceSelectiveRequester, PacketOvertaken_IsALossForTheCongestionControl) {
  RequesterOptions controlled = options;
  controlled.congestion = "cubic";
  begin(controlled);
  receive(selective(kFirstPsn - 1));
  send_messages(1);
  now += 20'000;
  send_messages(1);
  const uint64_t before = requester->paths()[0].congestion->window();
  receive(selective(kFirstPsn - 1, {2}));
  ASSERT_EQ(requester->lost(), 1u);
  EXPECT_LT(requester->paths()[0].congestion->window(), before);
}

TEST_F(RoceSelectiveRequester, AnswerWithNothingNew_RestartsTheTimeout) {
  send_messages(1);
  now += 10'000;
  receive(selective(kFirstPsn));
  send_messages(2);
  const int64_t timeout = requester->deadline() - now;
  ASSERT_GT(timeout, 2);
  now += timeout / 2;
  receive(selective(kFirstPsn));
  EXPECT_EQ(requester->deadline(), now + timeout);
}

TEST_F(RoceSelectiveRequester, PacedPacket_LeavesAtItsTime) {
  RequesterOptions controlled = options;
  controlled.congestion = "dcqcn";
  begin(controlled);
  receive(selective(kFirstPsn - 1));
  Packet notification;
  notification.opcode = kCnpOpcode;
  for (int i = 0; i < 12; ++i) receive(notification);  // each halves the rate
  post(Opcode::kSend, 64 * kMtu);
  const size_t first = sends().size();
  ASSERT_LT(first, 64u);
  EXPECT_LT(requester->deadline(), now + 1'000'000) << "not when silence is over";
  now = requester->deadline();
  EXPECT_GT(sends().size(), 0u);
}

/// Two paths, of which the second is proven: packets leave by both.
class RoceTwoPaths : public RoceSelectiveRequester {
 protected:
  RoceTwoPaths() {
    requester->set_paths(2);
    post(Opcode::kSend, 8);
    requester->transmit(now, output, 100);
    Packet echo;
    for (const auto& sent : output.packets)
      if (sent.packet.opcode == kPathProbe) echo = sent.packet;
    output.take();
    echo.opcode = kPathEcho;
    echo.mark = kNupaMark;
    now += 1'000;  // the second path is quick, and thus used too
    receive(echo);
    now += 100'000;
    Packet ack = selective(kFirstPsn);
    ack.trigger_valid = true;
    ack.trigger = kFirstPsn;
    receive(ack);
  }
};

TEST_F(RoceTwoPaths, SilentPath_NothingElseUnderWay_IsLeftBeforeTheTimeout) {
  ASSERT_EQ(requester->paths()[1].health, Path::Health::kAlive);
  for (int i = 0; i < 16; ++i) post(Opcode::kSend, 8);
  requester->transmit(now, output, 100);
  std::vector<uint32_t> came;  // by the second path
  for (uint32_t i = 0; i < output.packets.size(); ++i)
    if (output.packets[i].path == 1) came.push_back(i + 1);
  ASSERT_EQ(output.packets.size(), 16u);
  ASSERT_GT(came.size(), 0u);
  ASSERT_LT(came.size(), 16u);
  output.take();
  now += 20'000;
  receive(selective(kFirstPsn, came));
  for (int i = 0; i < 8 && requester->lost() == 0; ++i) {
    ASSERT_LT(requester->deadline(), now + 2'000'000) << "before the timeout";
    ASSERT_TRUE(wait());
  }
  EXPECT_EQ(requester->lost(), 16u - came.size());
  EXPECT_EQ(counters().resent_timeout, 0u);
}

TEST_F(RoceSelectiveRequester, Loss_ResendsOnlyMissingPackets) {
  send_messages(3);
  now += 20'000;
  send_messages(2);
  receive(selective(kFirstPsn - 1, {2, 4}));
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "SEND_ONLY 102 8 bytes asks"}));
  EXPECT_EQ(counters().resent_selective, 2u);
  EXPECT_EQ(counters().resent_sequence, 0u);
  EXPECT_EQ(counters().resent_timeout, 0u);
}

TEST_F(RoceSelectiveRequester, ResentPackets_RequestAcknowledgements) {
  post(Opcode::kSend, 3 * kMtu);
  EXPECT_EQ(sends(), (Texts{"SEND_FIRST 100 256 bytes", "SEND_MIDDLE 101 256 bytes", "SEND_LAST 102 256 bytes asks"}));
  now += 20'000;
  send_messages(1);
  receive(selective(kFirstPsn - 1, {4}));
  EXPECT_EQ(sends(),
            (Texts{"SEND_FIRST 100 256 bytes asks", "SEND_MIDDLE 101 256 bytes asks", "SEND_LAST 102 256 bytes asks"}));
}

TEST_F(RoceSelectiveRequester,
       LastPacketWithRoom_RequestsAnAcknowledgement) {  // else the room comes back with a timeout
  constexpr uint32_t kPacket = kMtu + kBthBytes + kIcrcBytes;
  requester->set_room(2 * kPacket, UINT64_MAX);
  post(Opcode::kSend, 3 * kMtu);
  EXPECT_EQ(sends(), (Texts{"SEND_FIRST 100 256 bytes", "SEND_MIDDLE 101 256 bytes asks"}));
}

TEST_F(RoceSelectiveRequester, RoundTrip_ExcludesTheDelayAtThePeer) {
  send_messages(2);
  now += 50'000;
  Packet ack = selective(kFirstPsn);
  ack.trigger_valid = true;
  ack.trigger = kFirstPsn;
  ack.delay_ns = 20'000;
  receive(ack);
  EXPECT_EQ(round_trip().latest(), 30'000);
  now += 50'000;
  ack = selective(kFirstPsn);
  ack.trigger = kFirstPsn + 1;
  receive(ack);
  EXPECT_EQ(round_trip().latest(), 30'000) << "it does not say what caused it";
  ack.trigger_valid = true;
  ack.trigger = kFirstPsn + 2;
  receive(ack);
  EXPECT_EQ(round_trip().latest(), 30'000) << "nor can it be what was not sent";
  ack.trigger = kFirstPsn;
  receive(ack);
  EXPECT_EQ(round_trip().latest(), 30'000) << "or is done";
}

TEST_F(RoceSelectiveRequester, ResentPacket_GivesNoRoundTripSample) {
  send_messages(1);
  now += 20'000;
  send_messages(1);
  receive(selective(kFirstPsn - 1, {2}));
  EXPECT_EQ(sends().size(), 1u);
  now += 5'000;
  Packet ack = selective(kFirstPsn + 1);
  ack.trigger_valid = true;
  ack.trigger = kFirstPsn;
  receive(ack);
  EXPECT_FALSE(round_trip().known()) << "Karn: of which of the two is it?";
}

TEST_F(RoceSelectiveRequester, MarkedCount_AddsTheDifferenceAndNeverDecreases) {
  send_messages(3);
  Packet ack = selective(kFirstPsn);
  ack.marked = 5;
  receive(ack);
  EXPECT_EQ(counters().marked, 5u);
  ack.marked = 3;
  receive(ack);
  EXPECT_EQ(counters().marked, 5u) << "an older one that was overtaken";
  ack.marked = 6;
  receive(ack);
  EXPECT_EQ(counters().marked, 6u);
}

TEST_F(RoceSelectiveRequester, MarkedCount_OfAnUnknownPath_CountsForTheLastPath) {
  send_messages(1);
  Packet ack = selective(kFirstPsn - 1);
  ack.marked = 5;
  receive(ack);
  // The same count again is news only if it is another path's. The numbers beyond kMaxPaths come last.
  for (const uint8_t path : {1, 3, 4, 255}) {
    ack.trigger_path = path;
    receive(ack);
    ASSERT_EQ(counters().marked, 5u) << "path " << int{path};
  }
  EXPECT_EQ(requester->paths()[0].marked_seen, 5u);
}

TEST_F(RoceSelectiveRequester, PeerWindow_LimitsWhatIsUnderWay) {
  constexpr uint32_t kPacket = 8 + kBthBytes + kIcrcBytes;
  Packet ack = selective(kFirstPsn - 1);
  ack.window = 3 * kPacket;
  receive(ack);
  EXPECT_EQ(requester->peer_window(), 3 * kPacket);
  for (int i = 0; i < 8; ++i) post(Opcode::kSend, 8);
  EXPECT_EQ(sends().size(), 3u);
  ack.psn = kFirstPsn;
  receive(ack);
  EXPECT_EQ(sends().size(), 1u);
  ack.window = 0;
  receive(ack);
  EXPECT_EQ(requester->peer_window(), UINT64_MAX);
  EXPECT_EQ(sends().size(), 4u);
}

TEST_F(RoceSelectiveRequester, RnrNak_ResendsOnePacketAfterItsTimer) {
  set_limits({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = 1});
  send_messages(3);
  const uint8_t not_ready = syndrome(AckKind::kRnrNak, 5);
  receive(selective(kFirstPsn - 1, {2, 3}, not_ready));
  EXPECT_EQ(requester->deadline(), now + core::rnr_timer_ns(5));
  EXPECT_EQ(sends(), Texts{});
  now += core::rnr_timer_ns(5);
  requester->on_timer(now);
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  EXPECT_EQ(done(), Done{});
  receive(selective(kFirstPsn - 1, {2, 3}, not_ready));
  EXPECT_EQ(done()[0], (RecordingHost::Done{0, WcStatus::kRnrRetryExcErr, 0}));
  EXPECT_EQ(counters().rnr_naks, 2u);
}

TEST_F(RoceSelectiveRequester, FatalNak_EndsTheRequestAfterTheLastAcknowledged) {
  send_messages(3);
  receive(selective(kFirstPsn, {}, syndrome(AckKind::kNak, static_cast<uint8_t>(NakCode::kRemoteAccess))));
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kRemAccessErr, 0}, {2, WcStatus::kWrFlushErr, 0}}));
}

TEST_F(RoceSelectiveRequester, FatalNak_OfUnsentPackets_EndsNothing) {
  send_first(2, 3);
  receive(selective(kFirstPsn + 1, {}, syndrome(AckKind::kNak, static_cast<uint8_t>(NakCode::kRemoteAccess))));
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 8}, {1, WcStatus::kSuccess, 8}}));
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 102 8 bytes asks"})) << "it goes on";
}

TEST_F(RoceSelectiveRequester, SequenceNak_SelectivePeer_ResendsNothing) {
  send_messages(2);
  nak(kFirstPsn, NakCode::kSequence);
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(counters().resent_sequence, 0u);
}

TEST_F(RoceSelectiveRequester, PacketKeptAndThenDropped_IsResent) {
  send_messages(3);
  receive(selective(kFirstPsn - 1, {2}));  // the second was kept
  receive(selective(kFirstPsn));           // and is not any more: it had no receive in its turn
  EXPECT_EQ(requester->sent_bytes(), 8 + kBthBytes + kIcrcBytes) << "of the third";
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 101 8 bytes asks"}));
  receive(selective(kFirstPsn + 2));
  EXPECT_EQ(done().size(), 3u);
  EXPECT_EQ(requester->sent_bytes(), 0u);
}

TEST_F(RoceSelectiveRequester, FirstTimeout_ResendsOnePacketAndTheNextAll) {
  send_messages(3);
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  EXPECT_EQ(counters().resent_timeout, 1u);
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends().size(), 3u);
  EXPECT_EQ(counters().resent_timeout, 4u);
  EXPECT_EQ(counters().resent_selective, 0u);
}

TEST_F(RoceSelectiveRequester, ResentPackets_AreCountedByCause) {
  send_messages(1);
  now += 20'000;
  send_messages(2);
  receive(selective(kFirstPsn - 1, {2}));
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  EXPECT_EQ(counters().resent_selective, 1u) << "one that a later packet overtook";
  EXPECT_EQ(counters().resent_timeout, 0u);
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends().size(), 1u);
  EXPECT_EQ(counters().resent_timeout, 1u) << "the packet that asks after a silence";
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "SEND_ONLY 102 8 bytes asks"}));
  EXPECT_EQ(counters().resent_timeout, 3u);
  EXPECT_EQ(counters().resent_selective, 1u);
}

TEST_F(RoceSelectiveRequester, PacketAnsweredBeforeItsRetransmission_IsNotCounted) {
  send_messages(1);
  ASSERT_TRUE(wait());
  receive(selective(kFirstPsn));
  EXPECT_EQ(sends(), Texts{});
  EXPECT_EQ(counters().resent_timeout, 0u);
}

TEST_F(RoceSelectiveRequester, ArrivedPackets_AfterATimeout_AreNotResent) {
  send_messages(4);
  receive(selective(kFirstPsn - 1, {2, 4}));
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "SEND_ONLY 102 8 bytes asks"})) << "overtaken";
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks"}));
  ASSERT_TRUE(wait());
  EXPECT_EQ(sends(), (Texts{"SEND_ONLY 100 8 bytes asks", "SEND_ONLY 102 8 bytes asks"}));
}

}  // namespace
}  // namespace nupa::roce::test
