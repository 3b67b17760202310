// SPDX-License-Identifier: Apache-2.0
/// Tests of which datagrams a queue pair accepts, and where its own are sent; management datagrams.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <optional>

#include "../core/shm_fixture.h"
#include "base/clock.h"
#include "endpoint_fixture.h"
#include "engine_fixture.h"
#include "transport/roce/datagram_endpoint.h"
#include "transport/roce/endpoint.h"

namespace nupa::roce::test {
namespace {

// ---- Datagrams (9.8.3).

class RoceDatagrams : public RoceEnd {
 protected:
  void open(const WireSettings& settings = {}) {
    host.identity().type = QpType::kUd;
    sources.gids = {{host_gid(1), 0}, {host_gid(11), 1}};
    endpoint = std::make_unique<DatagramEndpoint>(*port, end, sources, settings);
  }
  ~RoceDatagrams() override {
    if (endpoint) endpoint->withdraw();
  }
  Packet datagram(uint32_t bytes = 8) { return packet(opcode_of(Service::kUd, Operation::kSendOnly), 0, bytes); }
  void deliver(Packet made) { endpoint->deliver(made, from, 0); }

  Sources sources;
  std::unique_ptr<DatagramEndpoint> endpoint;
};

TEST_F(RoceDatagrams, Ibta983_Datagram_IsPlacedBehindItsHeader) {
  open();
  from.hop_limit = 9;
  from.traffic_class = 0x22;
  Packet made = datagram(8);
  made.solicited = true;
  deliver(made);
  ASSERT_EQ(host.received.size(), 1u);
  const RecordingHost::Received& received = host.received[0];
  EXPECT_EQ(received.status, WcStatus::kSuccess);
  EXPECT_EQ(received.message.byte_len, 48u);
  EXPECT_EQ(received.message.src_qp, 0x777u);
  EXPECT_EQ(received.message.wc_flags, wc_flag::kGrh);
  EXPECT_TRUE(received.message.solicited);
  EXPECT_EQ(0, std::memcmp(received.bytes.data() + 40, payloads.back().data(), 8));
  EXPECT_EQ(0, std::memcmp(received.bytes.data() + 8, from.from.address.raw.data(), 16));
  EXPECT_EQ(0, std::memcmp(received.bytes.data() + 24, from.to.raw.data(), 16));
  EXPECT_EQ(received.bytes[7], 9);
  Packet with = packet(opcode_of(Service::kUd, Operation::kSendOnlyImm), 0, 8);
  with.imm = 0xabc;
  deliver(with);
  ASSERT_EQ(host.received.size(), 2u);
  EXPECT_EQ(host.received[1].message.wc_flags, wc_flag::kGrh | wc_flag::kWithImm);
  EXPECT_EQ(host.received[1].message.imm_data, 0xabcu);
}

TEST_F(RoceDatagrams, Datagram_ForAnotherReceiver_IsUnexpectedAndTakesNoReceive) {
  open();
  uint64_t unexpected = 0;
  const auto expect_unexpected = [&](const Packet& made, const char* why) {
    deliver(made);
    EXPECT_EQ(wire->unexpected_packets, ++unexpected) << why;
    EXPECT_TRUE(host.received.empty()) << why;
    EXPECT_EQ(host.receives.size(), 8u) << why;
  };
  Packet made = datagram();
  made.qkey = kQkey + 1;
  expect_unexpected(made, "IBTA 9.6.1.4.1: another Q_Key");
  for (const uint16_t pkey : {0x0000, 0x8000, 0xfffe, 0x7ffe}) {
    made = datagram();
    made.pkey = pkey;
    expect_unexpected(made, "another partition");
  }
  for (const Service service : {Service::kRc, Service::kUc, Service::kXrc}) {
    made = datagram();
    made.opcode = opcode_of(service, Operation::kSendOnly);
    expect_unexpected(made, "another service");
  }
  for (const QpState state : {QpState::kReset, QpState::kInit, QpState::kErr}) {
    set_state(state);
    expect_unexpected(datagram(), "a state that does not receive");
  }
  set_state(QpState::kRtr);
  made = datagram();
  made.pkey = 0x7fff;
  deliver(made);
  EXPECT_EQ(host.received.size(), 1u);
  EXPECT_EQ(wire->unexpected_packets, unexpected);
}

TEST_F(RoceDatagrams, Datagram_PinnedDevice_IsTakenForItsAddressesAndGroups) {
  sources.pinned = true;
  open();
  from.to = host_gid(5);
  deliver(datagram());
  EXPECT_EQ(wire->unexpected_packets, 1u);
  EXPECT_TRUE(host.received.empty());
  for (const Gid& to : {host_gid(1), host_gid(11), Gid{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224, 1, 2, 3}}}) {
    from.to = to;
    deliver(datagram());
  }
  EXPECT_EQ(host.received.size(), 3u);
}

TEST_F(RoceDatagrams, Ibta98322_DatagramLongerThanTheReceive_IsDroppedAndTheReceiveStays) {
  open();
  host.receives = {48};
  deliver(datagram(9));
  EXPECT_TRUE(host.received.empty());
  EXPECT_EQ(host.receives.size(), 1u);
  EXPECT_FALSE(host.holds);
  deliver(datagram(8));
  EXPECT_EQ(host.received.size(), 1u) << "with its header it just fits";
  deliver(datagram(8));
  EXPECT_EQ(host.received.size(), 1u) << "there is no receive";
  EXPECT_EQ(wire->unexpected_packets, 0u);
  EXPECT_TRUE(host.refusals.empty());
}

TEST_F(RoceDatagrams, Datagram_ReceiveWithARevokedKey_EndsTheQueuePair) {
  open();
  host.places = false;
  deliver(datagram());
  ASSERT_EQ(host.received.size(), 1u);
  EXPECT_EQ(host.received[0].status, WcStatus::kLocProtErr);
  EXPECT_EQ(host.received[0].message.byte_len, 0u);
  ASSERT_EQ(host.refusals.size(), 1u);
  EXPECT_EQ(host.refusals[0], EventType::kQpFatal);
}

TEST_F(RoceDatagrams, OwnMulticastDatagram_IsReceivedOnlyWithLoopback) {
  const Gid group{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224, 1, 2, 3}};
  for (const bool with_loopback : {true, false}) {
    host.received.clear();
    host.receives.assign(8, 2048);
    if (endpoint) endpoint->withdraw();
    host.identity().hears_itself = with_loopback;
    open();
    from.from.address = host_gid(1);
    from.to = group;
    Packet own = datagram();
    own.source_qpn = kOwnQpn;
    deliver(own);
    EXPECT_EQ(host.received.size(), with_loopback ? 1u : 0u);
    // Not its own: another queue pair's, another host's, or not to a group.
    deliver(datagram());
    from.from.address = host_gid(2);
    deliver(own);
    from.from.address = host_gid(1);
    from.to = host_gid(1);
    deliver(own);
    EXPECT_EQ(host.received.size(), with_loopback ? 4u : 3u);
    EXPECT_EQ(wire->unexpected_packets, 0u);
  }
}

/// A peer's socket at the port of its slot, and the packets that come there.
class RoceDatagramsSent : public RoceDatagrams {
 protected:
  RoceDatagramsSent() {
    for (slot = 4000; slot < shm::kMaxSlot && !socket; ++slot)
      socket = net::UdpSocket::open(Port::port_of_slot(slot), 1 << 16);
    --slot;
    EXPECT_TRUE(socket);
    vector.is_global = true;
    vector.dgid = host_gid(1);
  }
  std::optional<WcStatus> send(SendWr wr, uint64_t length = 8) {
    bytes = pattern_bytes(length);
    const core::Piece piece{bytes.data(), length};
    wr.remote_qpn = wr.remote_qpn == 0 ? shm::number_of(slot, 9) : wr.remote_qpn;
    return endpoint->send({wr, &vector, &piece, 1, length, 0, WcStatus::kSuccess});
  }
  /// The next packet; false: none has come for ten seconds.
  bool next(Packet* packet) {
    const int64_t until = base::now_ns() + 10'000'000'000;
    while (base::now_ns() < until) {
      if (!socket->receive(buffer, sizeof buffer, &received)) continue;
      return decode(buffer, received.segment, packet);
    }
    return false;
  }

  uint32_t slot = 0;
  Result<net::UdpSocket> socket = fail(0, "");
  AddressVector vector;
  std::vector<std::byte> bytes;
  std::byte buffer[net::UdpSocket::kMaxReceive];
  net::UdpSocket::Received received;
};

TEST_F(RoceDatagramsSent, Datagram_CarriesSenderAndQkey) {
  open();
  SendWr wr;
  wr.remote_qkey = 0x5555;
  EXPECT_EQ(send(wr), WcStatus::kSuccess);
  Packet made;
  ASSERT_TRUE(next(&made));
  EXPECT_EQ(made.opcode, opcode_of(Service::kUd, Operation::kSendOnly));
  EXPECT_EQ(made.qkey, 0x5555u);
  EXPECT_EQ(made.source_qpn, kOwnQpn);
  EXPECT_EQ(made.dest_qpn, shm::number_of(slot, 9));
  EXPECT_EQ(made.pkey, 0xffff);
  EXPECT_EQ(made.payload_length, 8u);
  EXPECT_EQ(made.psn, 0u);
  EXPECT_FALSE(made.solicited || made.ack_request);
  // IBTA 10.2.5: the high bit asks for the queue pair's own Q_Key.
  wr.remote_qkey = 0x80005555;
  wr.flags = send_flag::kSolicited;
  wr.opcode = Opcode::kSendWithImm;
  wr.imm_or_rkey = 0x42;
  EXPECT_EQ(send(wr), WcStatus::kSuccess);
  ASSERT_TRUE(next(&made));
  EXPECT_EQ(made.qkey, kQkey);
  EXPECT_EQ(made.psn, 1u);
  EXPECT_EQ(made.imm, 0x42u);
  EXPECT_TRUE(made.solicited);
}

TEST_F(RoceDatagramsSent, SourceAddress_IsThatOfTheGidIndex) {
  open();
  vector.sgid_index = 1;
  EXPECT_EQ(send({}), WcStatus::kSuccess);
  Packet made;
  ASSERT_TRUE(next(&made));
  EXPECT_EQ(received.from.address, host_gid(11));
  vector.sgid_index = 2;  // none
  EXPECT_EQ(send({}), WcStatus::kSuccess);
  ASSERT_TRUE(next(&made));
  EXPECT_EQ(received.from.address, host_gid(1));
}

TEST_F(RoceDatagramsSent, Ibta98312_MessageLongerThanOnePacket_IsALocalLengthError) {
  open();
  EXPECT_EQ(send({}, 1025), WcStatus::kLocLenErr);
  EXPECT_EQ(send({}, 1024), WcStatus::kSuccess);
  Packet made;
  ASSERT_TRUE(next(&made));
  EXPECT_EQ(made.payload_length, 1024u) << "and the first was not sent";
}

// ---- Management datagrams (3.9.4, 13.4).

TEST(RoceManagement, Ibta1342_OnlyDatagramsOfQueuePair1_AreRead) {
  const std::vector<std::byte> payload = pattern_bytes(MadDatagram::kBytes + 4);
  Packet good;
  good.opcode = opcode_of(Service::kUd, Operation::kSendOnly);
  good.dest_qpn = kManagementQpn;
  good.source_qpn = kManagementQpn;
  good.qkey = kManagementQkey;
  good.payload = payload.data();
  good.payload_length = MadDatagram::kBytes;
  net::UdpSocket::Received received;
  received.from = {host_gid(2), 1234, 0};
  received.to = host_gid(1);
  MadDatagram datagram;
  ASSERT_TRUE(read_management(good, received, &datagram));
  EXPECT_EQ(0, std::memcmp(datagram.bytes.data(), payload.data(), MadDatagram::kBytes));
  EXPECT_EQ(datagram.local, host_gid(1));
  EXPECT_EQ(datagram.remote.address, host_gid(2));
  EXPECT_EQ(datagram.from_port, 1234);
  EXPECT_EQ(datagram.remote.port, kUdpPort) << "where standard peers look";
  EXPECT_FALSE(datagram.of_nupa);
  const auto refused = [&](auto change) {
    Packet bad = good;
    change(bad);
    return !read_management(bad, received, &datagram);
  };
  EXPECT_TRUE(refused([](Packet& bad) { bad.opcode = opcode_of(Service::kUd, Operation::kSendOnlyImm); }));
  EXPECT_TRUE(refused([](Packet& bad) { bad.opcode = opcode_of(Service::kRc, Operation::kSendOnly); }));
  EXPECT_TRUE(refused([](Packet& bad) { bad.dest_qpn = 2; }));
  EXPECT_TRUE(refused([](Packet& bad) { bad.source_qpn = 2; }));
  EXPECT_TRUE(refused([](Packet& bad) { bad.source_qpn = 0; }));
  EXPECT_TRUE(refused([](Packet& bad) { bad.qkey = kManagementQkey + 1; }));
  EXPECT_TRUE(refused([](Packet& bad) { bad.pkey = 0xfffe; }));
  EXPECT_TRUE(refused([](Packet& bad) { bad.payload_length = MadDatagram::kBytes - 1; }));
  EXPECT_TRUE(refused([](Packet& bad) { bad.payload_length = MadDatagram::kBytes + 1; }));
  EXPECT_FALSE(refused([](Packet& fine) { fine.pkey = 0x7fff; }));
  good.mark = kNupaMark;
  ASSERT_TRUE(read_management(good, received, &datagram));
  EXPECT_TRUE(datagram.of_nupa);
  EXPECT_EQ(datagram.remote.port, 1234);
}

}  // namespace
}  // namespace nupa::roce::test
