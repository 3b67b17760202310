// SPDX-License-Identifier: Apache-2.0
/// Whose packets a queue pair takes, and where its own go: connections, datagrams, management.
#ifndef NUPA_TEST_DROPIN
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <list>
#include <optional>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "core/qp.h"
#include "../core/shm_fixture.h"
#include "engine_fixture.h"
#include "core/seam/grh.h"
#include "transport/roce/datagram_endpoint.h"
#include "transport/roce/endpoint.h"
#include "core/seam/timers.h"

namespace nupa::roce::test {
namespace {

constexpr uint32_t kOwnQpn = shm::number_of(1, 5);
constexpr uint32_t kPeerSlot = 2;
constexpr uint32_t kNupaPeerQpn = shm::number_of(kPeerSlot, 7);
constexpr uint16_t kPeerPort = Port::port_of_slot(kPeerSlot);
constexpr uint32_t kQkey = 0x11223344;
constexpr QpState kStates[] = {QpState::kReset, QpState::kInit, QpState::kRtr, QpState::kRts,
                               QpState::kSqd,   QpState::kSqe,  QpState::kErr};

Gid host_gid(uint8_t host) { return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, host}}; }

/// A port with its socket, and what a queue pair shows to others.
class RoceEnd : public ::testing::Test {
 protected:
  RoceEnd() {
    auto socket = net::UdpSocket::open(0, 1 << 18);
    EXPECT_TRUE(socket);
    auto opened = Port::open(std::move(*socket));
    EXPECT_TRUE(opened);
    port = std::move(*opened);
    set_state(QpState::kRts);
    shared->qkey.store(kQkey);
    end.context = &host;
    host.identity().shared = shared.get();
    host.identity().statistics = block.get();
    host.identity().number = kOwnQpn;
    host.identity().cap = {16, 16, 2, 2, 64};
    end.max_datagram = 1024;
    from.from = {host_gid(2), kPeerPort, 0};
    from.to = host_gid(1);
    host.receives.assign(8, 2048);
  }
  void set_state(QpState state) { shared->state.store(shm::pack_state(1, state)); }
  Packet packet(uint8_t opcode, uint32_t psn, uint32_t bytes = 8) {
    // Each packet keeps its payload, also when it is delivered after later ones were made.
    const std::vector<std::byte>& payload = payloads.emplace_back(pattern_bytes(bytes));
    Packet made;
    made.opcode = opcode;
    made.mark = kNupaMark;
    made.dest_qpn = kOwnQpn;
    made.psn = psn & kPsnMask;
    made.qkey = kQkey;
    made.source_qpn = 0x777;
    made.ack_request = true;
    made.payload = payload.data();
    made.payload_length = bytes;
    return made;
  }

  std::unique_ptr<Port> port;
  RecordingHost host;
  std::unique_ptr<shm::QpShared> shared = std::make_unique<shm::QpShared>();
  std::unique_ptr<shm::StatisticsShared> block = std::make_unique<shm::StatisticsShared>();
  const Statistics* const wire = reinterpret_cast<const Statistics*>(block->bytes);
  LocalEnd end;
  net::UdpSocket::Received from;
  std::list<std::vector<std::byte>> payloads;
};

class RoceConnected : public RoceEnd {
 protected:
  void connect(bool standard = false, uint32_t peer_qpn = kNupaPeerQpn, std::vector<Rail> rails = {}) {
    end.rails = rails.empty() ? std::vector<Rail>{{host_gid(1), 0, 50'000, 0}} : std::move(rails);
    QpAttr attr;
    attr.dest_qp_num = peer_qpn;
    attr.rq_psn = kFirstPsn;
    attr.path_mtu = path_mtu;
    attr.max_dest_rd_atomic = 4;
    attr.timeout = 8;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 4;
    settings.standard = standard;
    endpoint.emplace(*port, end, attr, host_gid(2), settings);
    endpoint->set_attributes(attr);
    started = false;
  }
  ~RoceConnected() override {
    if (endpoint) endpoint->withdraw();
  }
  void deliver(Packet made) { endpoint->deliver(made, from, base::now_ns()); }
  Packet send_of(uint32_t psn) { return packet(opcode_of(Service::kRc, Operation::kSendOnly), psn); }
  void transmit() { endpoint->transmit(base::now_ns(), *port->burst(), true); }
  void start() {
    endpoint->start(kFirstPsn);
    started = true;
  }
  /// Shown once the queue pair sends.
  uint16_t destination_port(uint32_t path = 0) {
    if (!started) start();
    transmit();
    return static_cast<uint16_t>(wire->path[path].ports.load());
  }
  void post() {
    const Sge sge{kBase, 8, kKey};
    SendWr wr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    endpoint->post({wr, nullptr, nullptr, 0, 8, 0, WcStatus::kSuccess});
  }
  /// The introduction of a peer with these rails.
  Packet introduction(const std::vector<Rail>& rails, bool takes_unchecked = false) {
    Introduction theirs(rails, takes_unchecked);
    theirs.meet();
    theirs.transmit(0, packet(kIntroduction, 0, 0), introduced);
    Packet made = introduced.packets.at(0).packet;
    const auto& payload = payloads.emplace_back(introduced.packets.at(0).payload);
    introduced.packets.clear();
    made.payload = payload.data();
    return made;
  }

  WireSettings settings;
  uint8_t path_mtu = 1;
  std::optional<ConnectedEndpoint> endpoint;
  bool started = false;
  RecordingOutput introduced;
};

TEST_F(RoceConnected, IbtaA174_PacketFromAnotherAddress_IsAStranger) {
  connect();
  from.from.address = host_gid(3);
  deliver(send_of(kFirstPsn));
  from.from.address = host_gid(2);
  from.to = host_gid(4);
  deliver(send_of(kFirstPsn));
  EXPECT_EQ(wire->strangers, 2u);
  EXPECT_TRUE(host.received.empty());
  from.to = host_gid(1);
  deliver(send_of(kFirstPsn));
  EXPECT_EQ(host.received.size(), 1u);
  EXPECT_EQ(wire->strangers, 2u);
}

TEST_F(RoceConnected, StandardPeer_MaySendFromAnyPort) {
  connect();
  Packet made = send_of(kFirstPsn);
  made.mark = 0;
  from.from.port = 12345;
  deliver(made);
  EXPECT_EQ(host.received.size(), 1u);
  EXPECT_EQ(wire->strangers, 0u);
}

TEST_F(RoceConnected, Ibta9613_PacketOfAnotherPartition_IsAStranger) {
  connect();
  for (const uint16_t pkey : {0x0000, 0x8000, 0x7ffe, 0xfffe, 0x0001}) {
    Packet made = send_of(kFirstPsn);
    made.pkey = pkey;
    deliver(made);
  }
  EXPECT_EQ(wire->strangers, 5u);
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
    EXPECT_EQ(wire->strangers, receives ? 0u : 1u) << static_cast<int>(state);
  }
}

TEST_F(RoceConnected, AnswersBeforeItSends_AreIgnored) {
  connect();
  set_state(QpState::kRtr);
  deliver(packet(opcode_of(Service::kRc, Operation::kAcknowledge), kFirstPsn, 0));
  deliver(packet(kCnpOpcode, 0, 0));
  EXPECT_EQ(wire->strangers, 0u);
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

TEST_F(RoceConnected, Counters_ShowEachPacketThatChangedNothingOnce) {
  connect();
  start();
  EXPECT_EQ(wire->duplicates + wire->dropped + wire->stray + wire->strangers, 0u);
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
  EXPECT_EQ(wire->strangers, 0u);
  from.from.address = host_gid(9);
  deliver(ack);
  EXPECT_EQ(wire->strangers, 1u);
}

TEST_F(RoceConnected, RepetitionsAreShownByWhatCausedThem) {
  connect();
  start();
  post();
  endpoint->send();
  endpoint->on_timer(base::now_ns() + 1'000'000'000);
  transmit();
  EXPECT_EQ(wire->resent_timeout, 1u);
  EXPECT_EQ(wire->resent_sequence, 0u);
  EXPECT_EQ(wire->resent_selective, 0u);
  Packet nak = packet(opcode_of(Service::kRc, Operation::kAcknowledge), kFirstPsn, 0);
  nak.mark = 0;
  nak.syndrome = syndrome(AckKind::kNak, static_cast<uint8_t>(NakCode::kSequence));
  deliver(nak);
  transmit();
  EXPECT_EQ(wire->resent_sequence, 1u);
  EXPECT_EQ(wire->resent_timeout, 1u);
}

TEST_F(RoceConnected, NupaPeersPort_IsThatOfItsSlotUntilAStandardPeerAnswers) {
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

TEST_F(RoceConnected, ForgedPacketWithoutTheMark_RedirectsNothing) {
  connect();
  deliver(send_of(kFirstPsn));
  Packet forged = send_of(kFirstPsn + 1);
  forged.mark = 0;
  deliver(forged);
  EXPECT_EQ(destination_port(), kPeerPort);
  EXPECT_EQ(wire->standard, 0u);
}

TEST_F(RoceConnected, NumberThatNamesNoSlot_IsOfAStandardPeer) {
  for (const uint32_t slot : {0u, shm::kMaxSlot + 1}) {
    if (endpoint) endpoint->withdraw();
    connect(false, shm::number_of(slot, 3));
    EXPECT_EQ(destination_port(), kUdpPort) << slot;
  }
}

TEST_F(RoceConnected, SilentPeer_IsLookedForAtBothPortsInTurn) {
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

const net::UdpAddress kNumbered{host_gid(2), kPeerPort, 0}, kStandard{host_gid(2), kUdpPort, 0};

TEST_F(RoceConnected, RefusalConcernsIt_IfItQuotesAPacketUnderWay) {
  connect();
  EXPECT_TRUE(endpoint->may_lead_to(kNumbered));
  EXPECT_TRUE(endpoint->may_lead_to(kStandard));
  EXPECT_FALSE(endpoint->may_lead_to({host_gid(3), kPeerPort, 0}));
  EXPECT_FALSE(endpoint->may_lead_to({host_gid(2), kPeerPort + 1, 0}));
  const PacketName right{kNupaPeerQpn, kFirstPsn};
  EXPECT_FALSE(endpoint->is_under_way(kNumbered, right)) << "it does not send yet";
  start();
  EXPECT_FALSE(endpoint->is_under_way(kNumbered, std::nullopt)) << "nothing is under way";
  post();
  endpoint->send();
  EXPECT_TRUE(endpoint->is_under_way(kNumbered, right));
  EXPECT_TRUE(endpoint->is_under_way(kStandard, right)) << "where the peer is is not known yet";
  EXPECT_TRUE(endpoint->is_under_way(kNumbered, std::nullopt)) << "the host quotes less";
  EXPECT_FALSE(endpoint->is_under_way(kNumbered, PacketName{kNupaPeerQpn + 1, kFirstPsn}));
  EXPECT_FALSE(endpoint->is_under_way(kNumbered, PacketName{kNupaPeerQpn, kFirstPsn + 1}));
  EXPECT_FALSE(endpoint->is_under_way(kNumbered, PacketName{kNupaPeerQpn, kFirstPsn - 1}));
  deliver(send_of(kFirstPsn));
  EXPECT_TRUE(endpoint->is_under_way(kNumbered, right));
  EXPECT_FALSE(endpoint->is_under_way(kStandard, right)) << "the peer is at the other port";
}

TEST_F(RoceConnected, PeerIsGone_WhenItsPortIsRefusedAndARepetitionStaysUnanswered) {
  connect();
  start();
  deliver(send_of(kFirstPsn));
  post();
  endpoint->send();
  int64_t now = base::now_ns();
  endpoint->doubt_peer(kStandard);
  for (int i = 0; i < 2; ++i) {
    endpoint->on_timer(now += 1'000'000'000);
    transmit();
  }
  EXPECT_TRUE(host.done.empty()) << "that is not where the peer is";
  endpoint->doubt_peer(kNumbered);
  endpoint->on_timer(now += 1'000'000'000);
  EXPECT_TRUE(host.done.empty()) << "it is asked once more";
  transmit();
  endpoint->on_timer(now += 1'000'000'000);
  ASSERT_EQ(host.done.size(), 1u);
  EXPECT_EQ(host.done[0].status, WcStatus::kRetryExcErr);
}

TEST_F(RoceConnected, PeerThatWasNeverHeard_IsGoneWhenBothPortsAreRefused) {
  connect();
  start();
  post();
  endpoint->send();
  int64_t now = base::now_ns();
  endpoint->doubt_peer(kNumbered);
  for (int i = 0; i < 3; ++i) {
    endpoint->on_timer(now += 1'000'000'000);
    transmit();
  }
  EXPECT_TRUE(host.done.empty()) << "it may be at the standard's port";
  endpoint->doubt_peer(kStandard);
  for (int i = 0; i < 2; ++i) {
    endpoint->on_timer(now += 1'000'000'000);
    transmit();
  }
  ASSERT_EQ(host.done.size(), 1u);
  EXPECT_EQ(host.done[0].status, WcStatus::kRetryExcErr);
}

TEST_F(RoceConnected, EndOfTheStandard_LooksForASilentPeerAtTheStandardsPortOnly) {
  connect(true);
  start();
  post();
  endpoint->send();
  int64_t now = base::now_ns();
  for (int i = 0; i < 3; ++i) {
    endpoint->on_timer(now += 1'000'000'000);
    EXPECT_EQ(destination_port(), kUdpPort);
  }
}

TEST_F(RoceConnected, EndOfTheStandard_SpeaksToTheStandardsPortOnly) {
  connect(true);
  EXPECT_EQ(destination_port(), kUdpPort);
  deliver(send_of(kFirstPsn));
  EXPECT_EQ(destination_port(), kUdpPort);
  deliver(introduction({{host_gid(2), 0, 1, 0}, {host_gid(3), 0, 2, 0}}));
  transmit();
  EXPECT_EQ(wire->paths, 1u) << "introductions are not of the standard";
}

TEST_F(RoceConnected, MorePaths_AreTakenFromAnIntroductionOfThePeerOnly) {
  const std::vector<Rail> mine{{host_gid(1), 0, 50'000, 0}, {host_gid(11), 0, 50'001, 0}};
  const std::vector<Rail> theirs{{host_gid(2), 0, 40'000, 0}, {host_gid(12), 0, 40'001, 0}};
  connect(false, kNupaPeerQpn, mine);
  from.from.address = host_gid(3);
  deliver(introduction(theirs));
  transmit();
  EXPECT_EQ(wire->paths, 1u);
  EXPECT_EQ(wire->strangers, 1u);
  from.from.address = host_gid(2);
  deliver(introduction(theirs));
  transmit();
  EXPECT_EQ(wire->paths, 2u);
  EXPECT_EQ(wire->path[1].to, host_gid(12));
  EXPECT_EQ(wire->path[1].from, host_gid(11));
  EXPECT_EQ(destination_port(1), kPeerPort) << "the process has one port at all its addresses";
}

TEST_F(RoceConnected, PacketOfASecondPath_HasItsAddressesAndItsPort) {
  const std::vector<Rail> mine{{host_gid(1), 0, 50'000, 0}, {host_gid(11), 0, 50'001, 0}};
  connect(false, kNupaPeerQpn, mine);
  deliver(introduction({{host_gid(2), 0, 40'000, 0}, {host_gid(12), 0, 40'001, 0}}));
  struct Case {
    uint8_t from;
    uint8_t to;
    uint16_t port;
    bool taken;
  };
  uint32_t psn = kFirstPsn;
  uint64_t strangers = 0;
  for (const Case& each : {Case{12, 11, 40'001, true},
                           {12, 11, 40'000, false},
                           {12, 11, 4791, false},
                           {12, 1, 40'001, false},
                           {2, 11, 40'000, false},
                           {13, 11, 40'001, false},
                           {2, 1, 40'000, true},
                           {2, 1, 5, true}}) {
    from.from = {host_gid(each.from), each.port, 0};
    from.to = host_gid(each.to);
    host.received.clear();
    deliver(send_of(psn));
    EXPECT_EQ(host.received.size(), each.taken ? 1u : 0u) << int{each.from} << " to " << int{each.to};
    psn += each.taken;
    strangers += !each.taken;
    EXPECT_EQ(wire->strangers, strangers);
  }
}

TEST_F(RoceConnected, LongReadThatAPostFindsHalfAnswered_IsAnsweredToItsEnd) {
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

TEST_F(RoceConnected, AnswersThatWait_LeaveInTimeAlsoAfterATurn) {
  connect();
  start();
  deliver(send_of(kFirstPsn));
  endpoint->transmit(base::now_ns(), *port->burst(), false);
  ASSERT_TRUE(endpoint->owes_answers());
  const int64_t deadline = endpoint->deadline();
  ASSERT_LT(deadline, INT64_MAX);
  endpoint->take_turn(port->peer_at(host_gid(2), kPeerPort)->window, base::now_ns(), *port->burst());
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
  peer->tell_more();
  std::byte buffer[2048];
  const auto received_from = [&](const Gid& address, const AddressVector& vector) {
    host.identity().type = QpType::kUc;
    end.rails = {{address, 0, 50'000, 0}};
    QpAttr attr;
    attr.dest_qp_num = shm::number_of(slot, 9);
    attr.path_mtu = 1;
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
  /// Answers, and has `count` packets come, without introductions. Fewer: no more came for ten seconds.
  std::vector<Packet> answers(size_t count) {
    Burst burst(sockets, false);
    endpoint->transmit(base::now_ns(), burst, true);
    burst.flush();
    std::vector<Packet> came;
    pollfd ready{far->fd(), POLLIN, 0};
    while (came.size() < count && poll(&ready, 1, 10'000) == 1) {
      std::vector<std::byte>& bytes = payloads.emplace_back(net::UdpSocket::kMaxReceive);
      net::UdpSocket::Received received;
      if (!far->receive(bytes.data(), net::UdpSocket::kMaxReceive, &received)) continue;
      for (uint32_t at = 0; at < received.length; at += received.segment) {
        Packet made;
        EXPECT_TRUE(decode(bytes.data() + at, std::min(received.segment, received.length - at), &made));
        if (made.opcode != kIntroduction) came.push_back(made);
      }
    }
    return came;
  }

  std::optional<net::UdpSocket> far;
  std::vector<net::UdpSocket> sockets;
};

TEST_F(RoceAnswers, EndOfTheStandard_AnswersNupasRequestsByTheStandard) {
  connect(true);
  deliver(send_of(kFirstPsn));
  const auto came = answers(1);
  ASSERT_EQ(came.size(), 1u);
  EXPECT_EQ(came[0].opcode, opcode_of(Service::kRc, Operation::kAcknowledge));
  EXPECT_EQ(came[0].mark, 0);
}

TEST_F(RoceAnswers, ResponsesOfAnXrcTarget_AreCopiedAsTheyAreMade) {
  constexpr uint32_t kResponses = 4;
  constexpr uint32_t kBytes = 1024;  // more than what is always copied
  settings.unchecked = true;
  path_mtu = 3;
  host.identity().type = QpType::kXrcRecv;
  host.memory = pattern_bytes(kMemoryBytes);
  host.copies = true;
  connect();
  deliver(introduction({{host_gid(2), 0, 40'000, 0}}, true));
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

// ---- Room in the sockets of others and in this one's, which queue pairs share.

class RoceShares : public RoceConnected {
 protected:
  void SetUp() override {
    connect();
    start();
    process = port->peer_at(host_gid(2), kPeerPort);
  }
  /// Nothing is left in the other one's socket.
  void fill() { process->window.take(UINT64_MAX, 0); }
  void post_read(uint32_t bytes) {
    const Sge sge{kBase, bytes, kKey};
    SendWr wr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = Opcode::kRdmaRead;
    wr.remote_addr = kBase;
    wr.rkey = kKey;
    endpoint->post({wr, nullptr, nullptr, 0, 8, 0, WcStatus::kSuccess});
  }
  /// Does as a queue pair that stands in a line.
  Channel& somebody() { return *reinterpret_cast<Channel*>(&place); }

  std::shared_ptr<Peer> process;
  uint64_t place = 0;
};

TEST_F(RoceShares, WhatIsUnderWayTakesRoomUntilItIsAnswered) {
  post();
  transmit();
  EXPECT_EQ(process->window.used(), kBthBytes + 8 + kIcrcBytes);
  Packet ack = packet(opcode_of(Service::kRc, Operation::kAcknowledge), kFirstPsn, 0);
  ack.syndrome = syndrome(AckKind::kAck, kAckUnlimited);
  deliver(ack);
  ASSERT_EQ(host.done.size(), 1u);
  transmit();
  EXPECT_EQ(process->window.used(), 0u);
}

TEST_F(RoceShares, ResponsesTakeRoomOfThisProcess) {
  post_read(1000);
  transmit();
  EXPECT_GE(port->response_window()->used(), 1000u);
  EXPECT_LT(port->response_window()->used(), 2000u);
  endpoint->flush();
  EXPECT_EQ(port->response_window()->used(), 0u);
  EXPECT_EQ(process->window.used(), 0u);
}

TEST_F(RoceShares, RoomIsGivenBackWithTheQueuePair) {
  post();
  post_read(1000);
  transmit();
  EXPECT_GT(process->window.used(), 0u);
  endpoint->withdraw();
  endpoint.reset();
  EXPECT_EQ(process->window.used(), 0u);
  EXPECT_EQ(port->response_window()->used(), 0u);
}

TEST_F(RoceShares, WithoutRoomItWaitsInLineOnce) {
  fill();
  post();
  for (int i = 0; i < 3; ++i) transmit();
  EXPECT_EQ(process->window.waiters(), 1u);
  EXPECT_EQ(process->window.used(), process->window.size());
  process->window.give_back(process->window.used());
  port->poll();
  const int64_t until = base::now_ns() + 10'000'000'000;
  while (process->window.has_waiters() && base::now_ns() < until) port->poll();
  EXPECT_FALSE(process->window.has_waiters());
  EXPECT_EQ(process->window.used(), kBthBytes + 8 + kIcrcBytes) << "its turn came";
  EXPECT_TRUE(host.done.empty());
}

TEST_F(RoceShares, WhoStandsInLineComesFirst) {
  process->window.wait(somebody());
  post();
  transmit();
  EXPECT_EQ(process->window.used(), 0u);
  EXPECT_EQ(process->window.waiters(), 2u);
  process->window.forget(somebody());
  transmit();
  EXPECT_EQ(process->window.waiters(), 0u) << "the first in line need not be called";
  EXPECT_EQ(process->window.used(), kBthBytes + 8 + kIcrcBytes);
}

TEST_F(RoceShares, WhoJoinsALineAlthoughThereIsRoom_IsCalledAtOnce) {
  fill();
  post();
  transmit();
  ASSERT_EQ(process->window.waiters(), 1u);
  EXPECT_GT(port->wanted_at(), base::now_ns()) << "who makes room calls it";
  process->window.give_back(process->window.used());
  process->window.forget(*endpoint);
  process->window.wait(somebody());
  transmit();
  process->window.forget(somebody());
  EXPECT_EQ(process->window.used(), 0u);
  EXPECT_LE(port->wanted_at(), base::now_ns()) << "nobody else will";
}

TEST_F(RoceShares, LineIsLeftByWhoHasNothingToSendAnyMore) {
  fill();
  post();
  transmit();
  ASSERT_EQ(process->window.waiters(), 1u);
  endpoint->flush();
  EXPECT_EQ(process->window.waiters(), 0u);
  start();
  post();
  transmit();
  ASSERT_EQ(process->window.waiters(), 1u);
  endpoint->withdraw();
  EXPECT_EQ(process->window.waiters(), 0u);
}

TEST_F(RoceShares, LineIsLeftForAnotherProcess) {
  fill();
  const uint64_t full = process->window.used();
  post();
  transmit();
  ASSERT_EQ(process->window.waiters(), 1u);
  Packet other = send_of(kFirstPsn);
  other.mark = 0;  // a standard peer: it is at the standard's port
  deliver(other);
  EXPECT_EQ(process->window.waiters(), 0u);
  EXPECT_EQ(process->window.used(), full);
  const std::shared_ptr<Peer> now = port->peer_at(host_gid(2), kUdpPort);
  EXPECT_EQ(now->window.size(), UINT64_MAX) << "nothing is known of its room";
  transmit();
  EXPECT_GT(now->window.used(), 0u);
  EXPECT_EQ(process->window.used(), full);
}

TEST_F(RoceShares, RoomIsGivenBackForAnotherProcess) {
  post();
  transmit();
  ASSERT_GT(process->window.used(), 0u);
  Packet other = send_of(kFirstPsn);
  other.mark = 0;
  deliver(other);
  EXPECT_EQ(process->window.used(), 0u);
}

TEST_F(RoceShares, WhatIsLostGoesAgainWithoutRoomAndWithoutWaiting) {
  constexpr uint64_t kPacket = kBthBytes + 8 + kIcrcBytes;
  for (int i = 0; i < 4; ++i) post();
  transmit();
  Packet first = packet(kSelectiveAck, kFirstPsn, 0);
  first.syndrome = syndrome(AckKind::kAck, kAckUnlimited);
  first.window = 1 << 20;
  deliver(first);
  ASSERT_EQ(host.done.size(), 1u);
  transmit();
  ASSERT_EQ(process->window.used(), 3 * kPacket);
  fill();
  const uint64_t others = process->window.used() - 3 * kPacket;
  process->window.wait(somebody());
  const auto expect_sent_again = [&](int64_t after_ns, uint64_t resent) {
    endpoint->on_timer(base::now_ns() + after_ns);
    transmit();
    EXPECT_EQ(wire->resent_timeout, resent);
    EXPECT_EQ(process->window.waiters(), 1u);
    EXPECT_EQ(process->window.used(), others + 3 * kPacket) << "they are under way again";
  };
  expect_sent_again(1'000'000'000, 1);  // the last packets are asked for by one
  expect_sent_again(3'000'000'000, 1 + 3);
  endpoint->flush();
  EXPECT_EQ(process->window.used(), others);
  process->window.forget(somebody());
}

TEST_F(RoceShares, UnreliableConnectionNeedsNoRoom) {
  endpoint->withdraw();
  endpoint.reset();
  host.identity().type = QpType::kUc;
  QpAttr attr;
  attr.dest_qp_num = kNupaPeerQpn;
  attr.path_mtu = 1;
  endpoint.emplace(*port, end, attr, host_gid(2), WireSettings{});
  start();
  fill();
  post();
  transmit();
  EXPECT_EQ(process->window.waiters(), 0u);
  EXPECT_EQ(process->window.used(), process->window.size());
  EXPECT_EQ(host.done.size(), 1u) << "it is complete once it has left";
}

TEST_F(RoceConnected, StopGivesUpTheReceiveAndTakesNothingMore) {
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

TEST_F(RoceConnected, SecondStart_GoesOnWithTheNextNumber) {
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

TEST_F(RoceConnected, PatienceThatIsChangedLater_HoldsFromThenOn) {  // 11.2.5.2: SQD to SQD
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
    const uint64_t before = port->burst()->refused();
    endpoint->send();
    port->burst()->flush();
    EXPECT_EQ(port->burst()->refused() > before, interface != 1) << interface;
  }
}

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

TEST_F(RoceDatagrams, Ibta983_DatagramAndItsHeader_LieInItsReceive) {
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

TEST_F(RoceDatagrams, DatagramThatIsNotForIt_IsAStrangerAndTakesNoReceive) {
  open();
  uint64_t strangers = 0;
  const auto expect_stranger = [&](const Packet& made, const char* why) {
    deliver(made);
    EXPECT_EQ(wire->strangers, ++strangers) << why;
    EXPECT_TRUE(host.received.empty()) << why;
    EXPECT_EQ(host.receives.size(), 8u) << why;
  };
  Packet made = datagram();
  made.qkey = kQkey + 1;
  expect_stranger(made, "IBTA 9.6.1.4.1: another Q_Key");
  for (const uint16_t pkey : {0x0000, 0x8000, 0xfffe, 0x7ffe}) {
    made = datagram();
    made.pkey = pkey;
    expect_stranger(made, "another partition");
  }
  for (const Service service : {Service::kRc, Service::kUc, Service::kXrc}) {
    made = datagram();
    made.opcode = opcode_of(service, Operation::kSendOnly);
    expect_stranger(made, "another service");
  }
  for (const QpState state : {QpState::kReset, QpState::kInit, QpState::kErr}) {
    set_state(state);
    expect_stranger(datagram(), "a state that does not receive");
  }
  set_state(QpState::kRtr);
  made = datagram();
  made.pkey = 0x7fff;
  deliver(made);
  EXPECT_EQ(host.received.size(), 1u);
  EXPECT_EQ(wire->strangers, strangers);
}

TEST_F(RoceDatagrams, DeviceThatIsPinned_TakesWhatComesToItsAddressesAndGroups) {
  sources.pinned = true;
  open();
  from.to = host_gid(5);
  deliver(datagram());
  EXPECT_EQ(wire->strangers, 1u);
  EXPECT_TRUE(host.received.empty());
  for (const Gid& to : {host_gid(1), host_gid(11), Gid{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224, 1, 2, 3}}}) {
    from.to = to;
    deliver(datagram());
  }
  EXPECT_EQ(host.received.size(), 3u);
}

TEST_F(RoceDatagrams, Ibta98322_DatagramWithoutRoom_IsLostAndItsReceiveStays) {
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
  EXPECT_EQ(wire->strangers, 0u);
  EXPECT_TRUE(host.refusals.empty());
}

TEST_F(RoceDatagrams, ReceiveWhoseKeyIsGone_EndsTheQueuePair) {
  open();
  host.places = false;
  deliver(datagram());
  ASSERT_EQ(host.received.size(), 1u);
  EXPECT_EQ(host.received[0].status, WcStatus::kLocProtErr);
  EXPECT_EQ(host.received[0].message.byte_len, 0u);
  ASSERT_EQ(host.refusals.size(), 1u);
  EXPECT_EQ(host.refusals[0], EventType::kQpFatal);
}

TEST_F(RoceDatagrams, OwnDatagramsToItsGroup_AreHeardOnlyIfWanted) {
  const Gid group{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224, 1, 2, 3}};
  for (const bool hears : {true, false}) {
    host.received.clear();
    host.receives.assign(8, 2048);
    if (endpoint) endpoint->withdraw();
    host.identity().hears_itself = hears;
    open();
    from.from.address = host_gid(1);
    from.to = group;
    Packet own = datagram();
    own.source_qpn = kOwnQpn;
    deliver(own);
    EXPECT_EQ(host.received.size(), hears ? 1u : 0u);
    // Not its own: another queue pair's, another host's, or not to a group.
    deliver(datagram());
    from.from.address = host_gid(2);
    deliver(own);
    from.from.address = host_gid(1);
    from.to = host_gid(1);
    deliver(own);
    EXPECT_EQ(host.received.size(), hears ? 4u : 3u);
    EXPECT_EQ(wire->strangers, 0u);
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

TEST_F(RoceDatagramsSent, DatagramsNameTheirSenderAndKey) {
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

TEST_F(RoceDatagramsSent, SourceAddress_IsThatOfTheHandlesIndex) {
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

namespace nupa::core {
namespace {

/// The queue pair takes requests from now on, though nothing leads to a peer.
void take_requests(shm::QpShared& shared) {
  std::atomic<uint64_t>& state = shared.state;
  state.store(shm::pack_state(shm::epoch_of(state.load()), QpState::kRtr));
}

/// What the core gives to the responder of an XRC target, call by call.
class RoceXrcHost : public ShmTest {
 protected:
  void SetUp() override {
    ShmTest::SetUp();
    domain = std::move(*handle->open_xrcd(-1, O_CREAT));
    target = std::move(*handle->create_qp(nullptr, {.type = QpType::kXrcRecv, .xrcd = domain.get()}));
    ASSERT_EQ(to_init(static_cast<Qp&>(*target)), 0);
    take_requests(shared(static_cast<Qp&>(*target)));
    host = std::make_unique<QpContextImpl>(static_cast<Qp&>(*target));
  }
  void TearDown() override {
    host.reset();
    target.reset();
    queue.reset();
    domain.reset();
    ShmTest::TearDown();
  }
  /// The domain's queue, whose receives complete in `completions`, in place of the one before.
  Srq& make_queue(Cq& completions) {
    queue.reset();
    queue = std::move(
        *handle->create_srq(*pd, {.max_wr = 4, .type = SrqType::kXrc, .xrcd = domain.get(), .cq = &completions}));
    return static_cast<Srq&>(*queue);
  }
  std::byte* read_at(uint32_t number) {
    return host->reach(number, region->rkey(), reinterpret_cast<uint64_t>(memory), 8, access::kRemoteRead);
  }

  std::unique_ptr<XrcDomain> domain;
  std::unique_ptr<QueuePair> target;
  std::unique_ptr<SharedReceiveQueue> queue;
  std::unique_ptr<QpContextImpl> host;
};

TEST_F(RoceXrcHost, MessageForAQueueThatWentAway_IsRefusedAlsoWhenItsNumberIsBack) {
  Srq& srq = make_queue(*cq);
  ASSERT_EQ(receive(srq, 7), 0);
  ASSERT_EQ(receive(srq, 8), 0);
  ASSERT_TRUE(host->select(srq.number()) == core::Selection::kYes && host->take_receive());
  EXPECT_EQ(host->receive_room(), 64u);
  EXPECT_NE(read_at(srq.number()), nullptr);
  // While the message is under way, a response to an earlier READ finds that the queue is not there.
  std::atomic<uint32_t>& in_use = tables().srq[srq.index()].in_use;
  in_use.store(0);
  EXPECT_EQ(read_at(srq.number()), nullptr);
  in_use.store(1);
  EXPECT_EQ(host->receive_room(), 0u);
  const std::byte data[8] = {};
  const std::byte* behind = nullptr;
  EXPECT_FALSE(host->place(0, data, sizeof data, &behind));
  host->complete_receive({}, WcStatus::kSuccess);
  EXPECT_TRUE(is_empty());
  ASSERT_TRUE(host->select(srq.number()) == core::Selection::kYes && host->take_receive()) << "the next message";
  host->complete_receive({}, WcStatus::kSuccess);
  EXPECT_EQ(next().wr_id, 8u);
}

TEST_F(RoceXrcHost, QueueWithTheNumberOfAnEarlierOne_IsNotTakenForIt) {
  Srq* srq = &make_queue(*cq);
  const uint32_t number = srq->number();
  ASSERT_EQ(receive(*srq, 1), 0);
  ASSERT_TRUE(host->select(number) == core::Selection::kYes && host->take_receive());
  host->complete_receive({}, WcStatus::kSuccess);
  EXPECT_EQ(next().wr_id, 1u);
  // A number is given out again after all others.
  Cq* const others = make_cq(4);
  srq = &make_queue(*others);
  for (uint32_t i = 0; i < shm::kMaxSrq && srq->number() != number; ++i) srq = &make_queue(*others);
  ASSERT_EQ(srq->number(), number);
  ASSERT_EQ(receive(*srq, 2), 0);
  ASSERT_TRUE(host->select(number) == core::Selection::kYes && host->take_receive());
  host->complete_receive({}, WcStatus::kSuccess);
  EXPECT_TRUE(is_empty()) << "told where the earlier queue's receives complete";
  EXPECT_EQ(next(others).wr_id, 2u);
}

TEST_F(RoceXrcHost, PolledReceive_MakesRoomInItsQueue) {
  Srq& srq = make_queue(*cq);
  for (uint64_t i = 1; i <= 16; ++i) {  // the queue has room for four
    ASSERT_EQ(receive(srq, i), 0);
    ASSERT_TRUE(host->select(srq.number()) == core::Selection::kYes && host->take_receive());
    host->complete_receive({}, WcStatus::kSuccess);
    EXPECT_EQ(next().wr_id, i);
  }
}

/// What the core gives to the responder of a queue pair with a shared receive queue.
class RoceSharedReceives : public ShmTest {};

TEST_F(RoceSharedReceives, Buffers_AreOfTheQueuesDomainNotOfTheQueuePairs) {
  const auto domain = std::move(*handle->alloc_pd());
  const auto buffer = std::move(*handle->alloc_mr(*domain, 64, access::kLocalWrite));
  const auto srq = std::move(*handle->create_srq(*domain, {.max_wr = 4}));
  const QpOptions options{.type = QpType::kRc, .send_cq = cq, .recv_cq = cq, .srq = srq.get(), .cap = {8, 8, 4, 4, 64}};
  const auto qp = std::move(*handle->create_qp(pd.get(), options));
  take_requests(shared(static_cast<Qp&>(*qp)));
  QpContextImpl host(static_cast<Qp&>(*qp));
  const Sge sge{reinterpret_cast<uint64_t>(buffer->addr()), 64, buffer->lkey()};
  ASSERT_EQ(srq->post_recv({1, &sge, 1}), 0);
  ASSERT_EQ(receive(*srq, 2), 0);  // of the queue pair's domain
  const auto data = roce::test::pattern_bytes(8);
  const std::byte* behind = nullptr;
  ASSERT_TRUE(host.take_receive());
  EXPECT_TRUE(host.place(0, data.data(), 8, &behind));
  EXPECT_EQ(0, std::memcmp(buffer->addr(), data.data(), 8));
  host.complete_receive({}, WcStatus::kSuccess);
  EXPECT_EQ(next().wr_id, 1u);
  ASSERT_TRUE(host.take_receive());
  EXPECT_FALSE(host.place(0, data.data(), 8, &behind));
  host.complete_receive({}, WcStatus::kLocProtErr);
  EXPECT_EQ(next().wr_id, 2u);
}

}  // namespace
}  // namespace nupa::core
#endif
