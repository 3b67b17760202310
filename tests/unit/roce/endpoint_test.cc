// SPDX-License-Identifier: Apache-2.0
/// Tests of which packets a connected queue pair accepts, and where its own are sent.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>

#include "../core/shm_fixture.h"
#include "base/clock.h"
#include "base/unique_fd.h"
#include "core/qp.h"
#include "endpoint_fixture.h"
#include "engine_fixture.h"
#include "transport/roce/datagram_endpoint.h"
#include "transport/roce/endpoint.h"

namespace nupa::roce::test {
namespace {

constexpr QpState kStates[] = {QpState::kReset, QpState::kInit, QpState::kRtr, QpState::kRts,
                               QpState::kSqd,   QpState::kSqe,  QpState::kErr};

TEST_F(RoceConnected, IbtaA174_PacketFromAnotherAddress_IsUnexpected) {
  connect();
  from.from.address = host_gid(3);
  deliver(send_of(kFirstPsn));
  from.from.address = host_gid(2);
  from.to = host_gid(4);
  deliver(send_of(kFirstPsn));
  EXPECT_EQ(wire->unexpected_packets, 2u);
  EXPECT_TRUE(host.received.empty());
  from.to = host_gid(1);
  deliver(send_of(kFirstPsn));
  EXPECT_EQ(host.received.size(), 1u);
  EXPECT_EQ(wire->unexpected_packets, 2u);
}

TEST_F(RoceConnected, StandardPeer_AnySourcePort_IsAccepted) {
  connect();
  Packet made = send_of(kFirstPsn);
  made.mark = 0;
  from.from.port = 12345;
  deliver(made);
  EXPECT_EQ(host.received.size(), 1u);
  EXPECT_EQ(wire->unexpected_packets, 0u);
}

TEST_F(RoceConnected, Ibta9613_PacketOfAnotherPartition_IsUnexpected) {
  connect();
  for (const uint16_t pkey : {0x0000, 0x8000, 0x7ffe, 0xfffe, 0x0001}) {
    Packet made = send_of(kFirstPsn);
    made.pkey = pkey;
    deliver(made);
  }
  EXPECT_EQ(wire->unexpected_packets, 5u);
  EXPECT_TRUE(host.received.empty());
  Packet limited = send_of(kFirstPsn);
  limited.pkey = 0x7fff;
  deliver(limited);
  EXPECT_EQ(host.received.size(), 1u) << "a limited member of the same partition";
}

TEST_F(RoceConnected, Ibta1031_StatesThatReceive_AreFromRtrToSqe) {
  for (const QpState state : kStates) {
    host.received.clear();
    if (endpoint) endpoint->withdraw();
    connect();
    set_state(state);
    deliver(send_of(kFirstPsn));
    const bool receives = state != QpState::kReset && state != QpState::kInit && state != QpState::kErr;
    EXPECT_EQ(host.received.size(), receives ? 1u : 0u) << static_cast<int>(state);
    EXPECT_EQ(wire->unexpected_packets, receives ? 0u : 1u) << static_cast<int>(state);
  }
}

TEST_F(RoceConnected, AnswersBeforeRts_AreIgnored) {
  connect();
  set_state(QpState::kRtr);
  deliver(packet(opcode_of(Service::kRc, Operation::kAcknowledge), kFirstPsn, 0));
  deliver(packet(kCnpOpcode, 0, 0));
  EXPECT_EQ(wire->unexpected_packets, 0u);
  EXPECT_TRUE(host.done.empty());
}

TEST_F(RoceConnected, AnswersGoToTheRequester_RequestsToTheResponder) {
  connect();
  start();
  post();
  endpoint->send();
  EXPECT_TRUE(host.done.empty());
  Packet ack = packet(opcode_of(Service::kRc, Operation::kAcknowledge), kFirstPsn, 0);
  ack.syndrome = syndrome(AckKind::kAck, kAckUnlimited);
  deliver(ack);
  ASSERT_EQ(host.done.size(), 1u);
  EXPECT_EQ(host.done[0].status, WcStatus::kSuccess);
  EXPECT_TRUE(host.received.empty());
}

TEST_F(RoceConnected, Counters_PacketsWithoutEffect_AreCountedOnce) {
  connect();
  start();
  EXPECT_EQ(wire->duplicates + wire->dropped + wire->stray + wire->unexpected_packets, 0u);
  deliver(send_of(kFirstPsn));
  deliver(send_of(kFirstPsn));
  deliver(send_of(kFirstPsn + 1 + kBitmapBits));
  deliver(send_of(kFirstPsn + 2));  // early, and kept
  Packet ack = packet(opcode_of(Service::kRc, Operation::kAcknowledge), kFirstPsn + 9, 0);
  deliver(ack);
  deliver(ack);
  deliver(ack);
  transmit();
  EXPECT_EQ(wire->duplicates, 1u);
  EXPECT_EQ(wire->dropped, 1u);
  EXPECT_EQ(wire->stray, 3u);
  EXPECT_EQ(wire->unexpected_packets, 0u);
  from.from.address = host_gid(9);
  deliver(ack);
  EXPECT_EQ(wire->unexpected_packets, 1u);
  EXPECT_EQ(counts[PortCount::kRcvPackets], 7u);
  EXPECT_EQ(counts[PortCount::kRcvBytes], 4 * 8u);
  EXPECT_EQ(counts[PortCount::kRcvErrors], 1u);
  EXPECT_EQ(counts[PortCount::kDuplicates], 1u);
  EXPECT_EQ(counts[PortCount::kOutOfSequence], 2u);
}

TEST_F(RoceConnected, PortCounts_GoOnWithTheNextConnection) {
  for (int life = 0; life < 2; ++life) {
    if (endpoint) endpoint->withdraw();
    connect();
    start();
    post();
    endpoint->send();
    deliver(send_of(kFirstPsn));
    deliver(send_of(kFirstPsn));
    transmit();
    transmit();
    endpoint->stop();
  }
  EXPECT_EQ(counts[PortCount::kDuplicates], 2u);
  EXPECT_EQ(counts[PortCount::kRcvPackets], 4u);
  EXPECT_EQ(counts[PortCount::kXmitBytes], 2 * 8u);
  EXPECT_GE(counts[PortCount::kXmitPackets], 4u) << "each time a request and an acknowledgement at least";
}

TEST_F(RoceConnected, PortCounts_AnswersOfThePeer) {
  connect();
  start();
  post();
  endpoint->send();
  Packet nak = packet(opcode_of(Service::kRc, Operation::kAcknowledge), kFirstPsn, 0);
  nak.mark = 0;
  nak.syndrome = syndrome(AckKind::kRnrNak, 1);
  deliver(nak);
  transmit();
  EXPECT_EQ(shared->counters.rnr, 1u);
  EXPECT_EQ(counts[PortCount::kSequenceNaks], 0u);
}

TEST_F(RoceConnected, PortCounts_RequestWithoutAReceive) {
  connect();
  start();
  host.receives.clear();
  deliver(send_of(kFirstPsn));
  transmit();
  EXPECT_EQ(counts[PortCount::kOutOfBuffer], 1u);
}

TEST_F(RoceConnected, Counters_Repetitions_AreCountedByCause) {
  connect();
  start();
  post();
  endpoint->send();
  endpoint->on_timer(base::now_ns() + 1'000'000'000);
  transmit();
  EXPECT_EQ(wire->resent_timeout, 1u);
  EXPECT_EQ(counts[PortCount::kAckTimeouts], 1u);
  EXPECT_EQ(counts[PortCount::kXmitPackets], 2u);
  EXPECT_EQ(wire->resent_sequence, 0u);
  EXPECT_EQ(wire->resent_selective, 0u);
  Packet nak = packet(opcode_of(Service::kRc, Operation::kAcknowledge), kFirstPsn, 0);
  nak.mark = 0;
  nak.syndrome = syndrome(AckKind::kNak, static_cast<uint8_t>(NakCode::kSequence));
  deliver(nak);
  transmit();
  EXPECT_EQ(wire->resent_sequence, 1u);
  EXPECT_EQ(wire->resent_timeout, 1u);
  EXPECT_EQ(counts[PortCount::kSequenceNaks], 1u);
  EXPECT_EQ(counts[PortCount::kAckTimeouts], 1u);
}

TEST_F(RoceConnected, DestinationPort_OfANupaPeer_IsThatOfItsSlotUntilAStandardPeerAnswers) {
  connect();
  EXPECT_EQ(destination_port(), kPeerPort);
  Packet standard = send_of(kFirstPsn);
  standard.mark = 0;
  deliver(standard);
  EXPECT_EQ(destination_port(), kUdpPort);
  EXPECT_EQ(wire->standard, 1u);
  deliver(send_of(kFirstPsn + 1));
  EXPECT_EQ(destination_port(), kPeerPort) << "it shows that it is NUPA";
  EXPECT_EQ(wire->standard, 0u);
}

TEST_F(RoceConnected, ForgedPacketWithoutTheMark_DoesNotChangeThePort) {
  connect();
  deliver(send_of(kFirstPsn));
  Packet forged = send_of(kFirstPsn + 1);
  forged.mark = 0;
  deliver(forged);
  EXPECT_EQ(destination_port(), kPeerPort);
  EXPECT_EQ(wire->standard, 0u);
}

TEST_F(RoceConnected, QueuePairNumberWithoutASlot_IsOfAStandardPeer) {
  for (const uint32_t slot : {0u, shm::kMaxSlot + 1}) {
    if (endpoint) endpoint->withdraw();
    connect(false, shm::number_of(slot, 3));
    EXPECT_EQ(destination_port(), kUdpPort) << slot;
  }
}

TEST_F(RoceConnected, SilentPeer_IsTriedAtBothPortsInTurn) {
  connect();
  start();
  post();
  endpoint->send();
  int64_t now = base::now_ns();
  for (const uint16_t expected : {kUdpPort, kPeerPort, kUdpPort}) {
    endpoint->on_timer(now += 1'000'000'000);
    EXPECT_EQ(destination_port(), expected);
  }
  // Once it has answered, silence says nothing of where it is.
  deliver(send_of(kFirstPsn));
  EXPECT_EQ(destination_port(), kPeerPort);
  endpoint->on_timer(now += 1'000'000'000);
  EXPECT_EQ(destination_port(), kPeerPort);
}

TEST_F(RoceConnected, LongRead_PartlyAnsweredByAPost_IsAnsweredCompletely) {
  constexpr uint32_t kReadBytes = 200 * kMtu;  // a post sends 64 packets of it
  connect();
  start();
  Packet read = packet(opcode_of(Service::kRc, Operation::kReadRequest), kFirstPsn, 0);
  read.address = kBase;
  read.rkey = kKey;
  read.length = kReadBytes;
  deliver(read);
  endpoint->send();
  ASSERT_TRUE(endpoint->owes_answers());
  EXPECT_LE(endpoint->deadline(), base::now_ns()) << "the port sends the rest at once";
  EXPECT_LE(port->wanted_at(), base::now_ns());
  transmit();
  EXPECT_FALSE(endpoint->owes_answers());
  EXPECT_EQ(endpoint->deadline(), INT64_MAX);
}

TEST_F(RoceConnected, DelayedAnswers_AfterATurn_LeaveInTime) {
  connect();
  start();
  deliver(send_of(kFirstPsn));
  endpoint->transmit(base::now_ns(), *port->batch(), false);
  ASSERT_TRUE(endpoint->owes_answers());
  const int64_t deadline = endpoint->deadline();
  ASSERT_LT(deadline, INT64_MAX);
  endpoint->take_turn(port->peer_at(host_gid(2), kPeerPort)->window, base::now_ns(), *port->batch());
  ASSERT_TRUE(endpoint->owes_answers());
  EXPECT_EQ(endpoint->deadline(), deadline);
  transmit();
  EXPECT_FALSE(endpoint->owes_answers());
  EXPECT_EQ(endpoint->deadline(), INT64_MAX);
}

TEST_F(RoceConnected, AddressVector_SetsTrafficClassAndFlowLabel_TheRouteTheHopLimit) {
  const Gid loopback{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  Result<net::UdpSocket> peer = fail(0, "");
  uint32_t slot = 4000;
  while (!peer && ++slot < shm::kMaxSlot) peer = net::UdpSocket::open(Port::port_of_slot(slot), 1 << 16);
  ASSERT_TRUE(peer);
  peer->report_more();
  std::byte buffer[2048];
  const auto received_from = [&](const Gid& address, const AddressVector& vector) {
    host.identity().type = QpType::kUc;
    end.rails = {{address, 0, 50'000, 0}};
    QpAttr attr;
    attr.dest_qp_num = shm::number_of(slot, 9);
    attr.path_mtu = Mtu::k256;
    attr.av = vector;
    endpoint.emplace(*port, end, attr, address, WireSettings{});
    endpoint->start(kFirstPsn);
    post();
    endpoint->send();
    endpoint->withdraw();
    net::UdpSocket::Received received;
    pollfd ready{peer->fd(), POLLIN, 0};
    EXPECT_EQ(poll(&ready, 1, 10'000), 1);
    EXPECT_TRUE(peer->receive(buffer, sizeof buffer, &received));
    return received;
  };
  AddressVector vector;
  vector.traffic_class = 0x20;
  vector.flow_label = 0x12345;
  vector.hop_limit = 1;
  const auto ipv4 = received_from(host_gid(1), vector);
  EXPECT_EQ(ipv4.traffic_class & 0xfc, 0x20);
  EXPECT_GT(ipv4.hop_limit, 1) << "programs write 1, and mean nothing by it";
  sockaddr_in6 name{};
  name.sin6_family = AF_INET6;
  name.sin6_addr = in6addr_loopback;
  const base::UniqueFd probe(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe || bind(probe.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0)
    GTEST_SKIP() << "no IPv6 here";
  const auto ipv6 = received_from(loopback, vector);
  EXPECT_EQ(ipv6.traffic_class & 0xfc, 0x20);
  EXPECT_EQ(ipv6.flow_label, 0x12345u);
  EXPECT_GT(ipv6.hop_limit, 1);
}

/// What a queue pair answers comes to the test, wherever it is sent to.
class RoceAnswers : public RoceConnected {
 protected:
  void SetUp() override {
    auto opened = net::UdpSocket::open(0, 1 << 18);
    ASSERT_TRUE(opened);
    far.emplace(std::move(*opened));
    auto near = net::UdpSocket::open(0, 1 << 18);
    ASSERT_TRUE(near);
    ASSERT_TRUE(near->lead_to({host_gid(1), far->port(), 0}));
    sockets.push_back(std::move(*near));
  }
  /// Answers, and has `count` packets come, without handshakes. Fewer: no more came for ten seconds.
  std::vector<Packet> answers(size_t count) {
    TransmitBatch batch(sockets, false);
    endpoint->transmit(base::now_ns(), batch, true);
    batch.flush();
    std::vector<Packet> came;
    pollfd ready{far->fd(), POLLIN, 0};
    while (came.size() < count && poll(&ready, 1, 10'000) == 1) {
      std::vector<std::byte>& bytes = payloads.emplace_back(net::UdpSocket::kMaxReceive);
      net::UdpSocket::Received received;
      if (!far->receive(bytes.data(), net::UdpSocket::kMaxReceive, &received)) continue;
      for (uint32_t at = 0; at < received.length; at += received.segment) {
        Packet made;
        EXPECT_TRUE(decode(bytes.data() + at, std::min(received.segment, received.length - at), &made));
        if (made.opcode != kHandshake) came.push_back(made);
      }
    }
    return came;
  }

  std::optional<net::UdpSocket> far;
  std::vector<net::UdpSocket> sockets;
};

TEST_F(RoceAnswers, StandardMode_AnswersANupaPeerByTheStandard) {
  connect(true);
  deliver(send_of(kFirstPsn));
  const auto came = answers(1);
  ASSERT_EQ(came.size(), 1u);
  EXPECT_EQ(came[0].opcode, opcode_of(Service::kRc, Operation::kAcknowledge));
  EXPECT_EQ(came[0].mark, 0);
}

TEST_F(RoceAnswers, ResponsesOfAnXrcTarget_AreCopiedWhenTheyAreMade) {
  constexpr uint32_t kResponses = 4;
  constexpr uint32_t kBytes = 1024;  // more than what is always copied
  settings.unchecked = true;
  path_mtu = Mtu::k1024;
  host.identity().type = QpType::kXrcRecv;
  host.memory = pattern_bytes(kMemoryBytes);
  host.copies = true;
  connect();
  deliver(handshake({{host_gid(2), 0, 40'000, 0}}, true));
  Packet read = packet(opcode_of(Service::kXrc, Operation::kReadRequest), kFirstPsn, 0);
  read.ack_request = false;
  read.address = kBase;
  read.rkey = kKey;
  read.length = kResponses * kBytes;
  deliver(read);
  const auto came = answers(kResponses);
  ASSERT_EQ(came.size(), kResponses);
  for (uint32_t i = 0; i < kResponses; ++i) {
    ASSERT_EQ(came[i].payload_length, kBytes);
    EXPECT_EQ(0, std::memcmp(came[i].payload, host.memory.data() + i * kBytes, kBytes)) << i;
  }
}

TEST_F(RoceConnected, Stop_ReturnsTheReceiveAndIgnoresLaterPackets) {
  connect();
  start();
  deliver(packet(opcode_of(Service::kRc, Operation::kSendFirst), kFirstPsn, 256));
  EXPECT_TRUE(host.holds);
  post();
  endpoint->stop();
  EXPECT_FALSE(host.holds);
  ASSERT_EQ(host.done.size(), 1u);
  EXPECT_EQ(host.done[0].status, WcStatus::kWrFlushErr);
  EXPECT_EQ(endpoint->deadline(), INT64_MAX);
  deliver(packet(opcode_of(Service::kRc, Operation::kSendLast), kFirstPsn + 1, 8));
  EXPECT_TRUE(host.received.empty());
}

TEST_F(RoceConnected, SecondStart_ContinuesWithTheNextPsn) {
  connect();
  start();
  post();
  endpoint->send();
  endpoint->flush();
  endpoint->start(777);
  post();
  endpoint->send();
  Packet ack = packet(opcode_of(Service::kRc, Operation::kAcknowledge), kFirstPsn + 1, 0);
  ack.syndrome = syndrome(AckKind::kAck, kAckUnlimited);
  deliver(ack);
  ASSERT_EQ(host.done.size(), 2u);
  EXPECT_EQ(host.done[1].status, WcStatus::kSuccess);
}

TEST_F(RoceConnected, RetryLimitsChangedLater_ApplyFromThenOn) {  // 11.2.5.2: SQD to SQD
  connect();
  start();
  QpAttr attr;
  attr.max_rd_atomic = 4;
  attr.rnr_retry = 7;
  attr.timeout = 0;
  endpoint->set_attributes(attr);
  post();
  transmit();
  EXPECT_EQ(endpoint->deadline(), INT64_MAX) << "it waits for an answer for ever";
  attr.timeout = 8;
  endpoint->set_attributes(attr);
  transmit();
  EXPECT_LT(endpoint->deadline(), INT64_MAX);
}

TEST_F(RoceConnected, PacketsOfARail_LeaveThroughItsInterfaceOnly) {
  for (const uint32_t interface : {1u, 0x7ffffff0u}) {  // the loopback, and one that is not there
    if (endpoint) endpoint->withdraw();
    connect(false, kNupaPeerQpn, {{host_gid(1), interface, 50'000, 0}});
    start();
    post();
    const uint64_t before = port->batch()->refused();
    endpoint->send();
    port->batch()->flush();
    EXPECT_EQ(port->batch()->refused() > before, interface != 1) << interface;
  }
}

}  // namespace
}  // namespace nupa::roce::test
