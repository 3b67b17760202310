// SPDX-License-Identifier: Apache-2.0
/// Tests of how a connected queue pair finds its peer, and detects that the peer has exited.
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

const net::UdpAddress kNumbered{host_gid(2), kPeerPort, 0}, kStandard{host_gid(2), kUdpPort, 0};

TEST_F(RoceConnected, IsUnderWay_RefusalQuotesAPacketUnderWay_IsTrue) {
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

TEST_F(RoceConnected, PortIsRefused_AndARepetitionIsUnanswered_PeerCountsAsDead) {
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

TEST_F(RoceConnected, BothPortsAreRefused_PeerNeverAnswered_CountsAsDead) {
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

TEST_F(RoceConnected, StandardMode_SilentPeer_IsTriedAtTheStandardPortOnly) {
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

TEST_F(RoceConnected, StandardMode_UsesTheStandardPortAndIgnoresHandshakes) {
  connect(true);
  EXPECT_EQ(destination_port(), kUdpPort);
  deliver(send_of(kFirstPsn));
  EXPECT_EQ(destination_port(), kUdpPort);
  deliver(handshake({{host_gid(2), 0, 1, 0}, {host_gid(3), 0, 2, 0}}));
  transmit();
  EXPECT_EQ(wire->paths, 1u) << "handshakes are not of the standard";
}

TEST_F(RoceConnected, Handshake_FromThePeerOnly_AddsPaths) {
  const std::vector<Rail> mine{{host_gid(1), 0, 50'000, 0}, {host_gid(11), 0, 50'001, 0}};
  const std::vector<Rail> theirs{{host_gid(2), 0, 40'000, 0}, {host_gid(12), 0, 40'001, 0}};
  connect(false, kNupaPeerQpn, mine);
  from.from.address = host_gid(3);
  deliver(handshake(theirs));
  transmit();
  EXPECT_EQ(wire->paths, 1u);
  EXPECT_EQ(wire->unexpected_packets, 1u);
  from.from.address = host_gid(2);
  deliver(handshake(theirs));
  transmit();
  EXPECT_EQ(wire->paths, 2u);
  EXPECT_EQ(wire->path[1].to, host_gid(12));
  EXPECT_EQ(wire->path[1].from, host_gid(11));
  EXPECT_EQ(destination_port(1), kPeerPort) << "the process has one port at all its addresses";
}

TEST_F(RoceConnected, PacketOfASecondPath_OtherAddressesOrPort_IsUnexpected) {
  const std::vector<Rail> mine{{host_gid(1), 0, 50'000, 0}, {host_gid(11), 0, 50'001, 0}};
  connect(false, kNupaPeerQpn, mine);
  deliver(handshake({{host_gid(2), 0, 40'000, 0}, {host_gid(12), 0, 40'001, 0}}));
  struct Case {
    uint8_t from;
    uint8_t to;
    uint16_t port;
    bool taken;
  };
  uint32_t psn = kFirstPsn;
  uint64_t unexpected = 0;
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
    unexpected += !each.taken;
    EXPECT_EQ(wire->unexpected_packets, unexpected);
  }
}

}  // namespace
}  // namespace nupa::roce::test
