// SPDX-License-Identifier: Apache-2.0
/// Tests of the packets that a requester sends for its requests, over RC and UC, and of congestion notifications.
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "requester_fixture.h"
#include "transport/roce/protocol/requester.h"

namespace nupa::roce::test {
namespace {

// ---- Packets (9.7.2).

TEST_F(RoceRequester, Ibta972_EachRequest_IsSentAsItsPackets) {
  struct Case {
    Opcode opcode;
    uint32_t length;
    Texts packets;
  };
  const Case cases[] = {
      {Opcode::kSend, 0, {"SEND_ONLY 100 0 bytes asks"}},
      {Opcode::kSend, 256, {"SEND_ONLY 100 256 bytes asks"}},
      {Opcode::kSend, 257, {"SEND_FIRST 100 256 bytes asks", "SEND_LAST 101 1 bytes asks"}},
      {Opcode::kSendWithImm, 8, {"SEND_ONLY_IMM 100 8 bytes asks"}},
      {Opcode::kSendWithImm, 300, {"SEND_FIRST 100 256 bytes asks", "SEND_LAST_IMM 101 44 bytes asks"}},
      {Opcode::kSendWithInv, 8, {"SEND_ONLY_INV 100 8 bytes asks"}},
      {Opcode::kSendWithInv, 300, {"SEND_FIRST 100 256 bytes asks", "SEND_LAST_INV 101 44 bytes asks"}},
      {Opcode::kRdmaWrite, 0, {"WRITE_ONLY 100 0 bytes asks"}},
      {Opcode::kRdmaWrite, 8, {"WRITE_ONLY 100 8 bytes asks"}},
      {Opcode::kRdmaWrite,
       600,
       {"WRITE_FIRST 100 256 bytes asks", "WRITE_MIDDLE 101 256 bytes asks", "WRITE_LAST 102 88 bytes asks"}},
      {Opcode::kRdmaWriteWithImm, 8, {"WRITE_ONLY_IMM 100 8 bytes asks"}},
      {Opcode::kRdmaWriteWithImm, 300, {"WRITE_FIRST 100 256 bytes asks", "WRITE_LAST_IMM 101 44 bytes asks"}},
      {Opcode::kRdmaRead, 600, {"READ 100 600 bytes asks"}},
      {Opcode::kCompareSwap, 8, {"COMPARE_SWAP 100 asks"}},
      {Opcode::kFetchAdd, 8, {"FETCH_ADD 100 asks"}},
      {Opcode::kAtomicWrite, 0, {"ATOMIC_WRITE 100 8 bytes asks"}},
  };
  for (const Case& each : cases) {
    begin(options);
    post(each.opcode, each.length);
    EXPECT_EQ(sends(), each.packets);
    EXPECT_EQ(output.last.packet.dest_qpn, kPeerQpn);
    EXPECT_EQ(output.last.packet.pkey, 0xffff);
    EXPECT_EQ(output.last.packet.mark, kNupaMark);
    EXPECT_EQ(output.last.packet.rkey, traits_of(output.last.packet.opcode) == 0 ? 0u : 0x99u);
    EXPECT_EQ(counters().packets, each.packets.size());
  }
}

TEST_F(RoceRequester, Payload_OfSeveralBuffers_IsContiguous) {
  const Sge list[] = {{kBase + 1, 100, kKey}, {kBase + 1000, 0, kKey}, {kBase + 500, 300, kKey}};
  SendWr wr;
  wr.sg_list = list;
  wr.num_sge = 3;
  requester->post(wr, 0);
  requester->transmit(now, output, 10);
  ASSERT_EQ(output.packets.size(), 2u);
  std::vector<std::byte> whole;
  for (const auto& sent : output.packets) whole.insert(whole.end(), sent.payload.begin(), sent.payload.end());
  ASSERT_EQ(whole.size(), 400u);
  for (size_t i = 0; i < 400; ++i) ASSERT_EQ(whole[i], pattern(i < 100 ? 1 + i : 500 + i - 100)) << i;
}

TEST_F(RoceRequester, Solicited_MessageOfSeveralPackets_IsSetInTheLastOnly) {
  post(Opcode::kSend, 300, send_flag::kSolicited);
  requester->transmit(now, output, 10);
  ASSERT_EQ(output.packets.size(), 2u);
  EXPECT_FALSE(output.packets[0].packet.solicited);
  EXPECT_TRUE(output.packets[1].packet.solicited);
  output.take();
  post(Opcode::kSend, 8);
  sends();
  EXPECT_FALSE(output.last.packet.solicited);
}

TEST_F(RoceRequester, InlineData_ChangedAfterThePost_IsSentAsPosted) {
  std::byte mine[8] = {std::byte{1}, std::byte{2}};
  const Sge sge{reinterpret_cast<uint64_t>(mine), 8, 0};
  SendWr wr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.flags = send_flag::kInline;
  requester->post(wr, 0);
  mine[0] = std::byte{9};
  EXPECT_EQ(sends().size(), 1u);
  EXPECT_EQ(output.last.payload[0], std::byte{1});
}

TEST_F(RoceRequester, Atomics_CarryTheirOperands) {
  SendWr wr = post(Opcode::kCompareSwap, 8);
  const Sge sge{kBase, 8, kKey};
  wr.sg_list = &sge;
  wr.compare_add = 5;
  wr.swap = 6;
  requester->post(wr, 1);
  wr.opcode = Opcode::kFetchAdd;
  requester->post(wr, 2);
  requester->transmit(now, output, 10);
  ASSERT_EQ(output.packets.size(), 3u);
  EXPECT_EQ(output.packets[1].packet.compare, 5u);
  EXPECT_EQ(output.packets[1].packet.swap_or_add, 6u);
  EXPECT_EQ(output.packets[2].packet.swap_or_add, 5u);
  EXPECT_EQ(output.packets[2].packet.compare, 0u);
}

TEST_F(RoceRequester, PacketNumbers_WrapAfter24Bits) {
  RequesterOptions wrapping = options;
  wrapping.first_psn = kPsnMask;
  begin(wrapping);
  post(Opcode::kSend, 300);
  EXPECT_EQ(sends(), (Texts{"SEND_FIRST 16777215 256 bytes asks", "SEND_LAST 0 44 bytes asks"}));
  EXPECT_EQ(requester->next_psn(), 1u);
  ack(0);
  EXPECT_EQ(done(), (Done{{0, WcStatus::kSuccess, 300}}));
}

TEST_F(RoceRequester, RequestWithAFault_SendsNothingAndCompletesInOrder) {
  post(Opcode::kSend, 8);
  const Sge list[] = {{kBase, 8, kKey}};
  SendWr wr;
  wr.wr_id = 7;
  wr.sg_list = list;
  wr.num_sge = 1;
  requester->post(wr, 1, WcStatus::kLocLenErr);
  post(Opcode::kSend, 8);
  EXPECT_EQ(sends(), Texts{"SEND_ONLY 100 8 bytes asks"});
  EXPECT_EQ(done(), Done{});
  ack(100);
  ASSERT_EQ(done().size(), 3u);
  EXPECT_EQ(done()[0].status, WcStatus::kSuccess);
  EXPECT_EQ(done()[1].wr_id, 7u);
  EXPECT_EQ(done()[1].status, WcStatus::kLocLenErr);
  EXPECT_EQ(done()[2].status, WcStatus::kWrFlushErr);
}

TEST_F(RoceRequester, FirstRequestWithAFault_CompletesWithoutAPacket) {
  SendWr wr;
  requester->post(wr, 0, WcStatus::kLocProtErr);
  EXPECT_EQ(sends(), Texts{});
  ASSERT_EQ(done().size(), 1u);
  EXPECT_EQ(done()[0].status, WcStatus::kLocProtErr);
}

// ---- UC.

TEST_F(RoceRequester, Ibta982_UnreliableRequests_CompleteWhenTheyAreSent) {
  RequesterOptions unreliable = options;
  unreliable.service = Service::kUc;
  begin(unreliable);
  post(Opcode::kSend, 300);
  post(Opcode::kRdmaWrite, 8);
  EXPECT_EQ(sends(1), (Texts{"SEND_FIRST 100 256 bytes"})) << "nothing is asked";
  EXPECT_EQ(done(), Done{});
  EXPECT_EQ(sends(), (Texts{"SEND_LAST 101 44 bytes", "WRITE_ONLY 102 8 bytes"}));
  EXPECT_EQ(done().size(), 2u);
  EXPECT_EQ(requester->deadline(), INT64_MAX);
  ack(kFirstPsn);
  EXPECT_EQ(counters().stray, 0u);
}

// ---- Congestion notifications (annex A17.9).

TEST_F(RoceRequester, IbtaA179_CongestionNotification_CutsTheRateAndIsCounted) {
  RequesterOptions controlled = options;
  controlled.congestion = "dcqcn";
  begin(controlled);
  const uint64_t before = requester->paths()[0].congestion->rate(now);
  Packet packet;
  packet.opcode = kCnpOpcode;
  packet.path = 3;  // a path that is not there counts as the last
  receive(packet);
  EXPECT_EQ(counters().notifications, 1u);
  EXPECT_LT(requester->paths()[0].congestion->rate(now), before);
  EXPECT_EQ(counters().stray, 0u);
}

}  // namespace
}  // namespace nupa::roce::test
