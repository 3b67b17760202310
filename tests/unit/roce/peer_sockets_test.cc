// SPDX-License-Identifier: Apache-2.0
/// Tests of which sockets a thread reads if there are several.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "transport/roce/port/further_ports.h"
#include "transport/roce/port/peer_sockets.h"

namespace nupa::roce {
namespace {

using progress::Receiver;

/// Packets wait where the test says so; each look is written down.
class RocePeerSockets : public ::testing::Test {
 protected:
  static constexpr uint32_t kBuffer = 1 << 18;
  static constexpr Gid kHost{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}};
  void SetUp() override {
    auto opened = net::UdpSocket::open(0, kBuffer);
    ASSERT_TRUE(opened);
    all.emplace(std::move(*opened));
    ASSERT_TRUE(right.open());
  }
  void lead() {
    net::UdpSocket::Received received;
    received.to = kHost;
    received.from = {kHost, all->port(), 0};
    sockets.lead_to(received, *all, right, windows, false);
    ASSERT_NE(sockets.shown(), nullptr);
  }
  /// "a": at the port's own socket; "p": at the peer's.
  std::string look(Receiver receiver) {
    std::string looks;
    packets = sockets.receive(*all, receiver, [&](const net::UdpSocket& socket) {
      const bool is_all = &socket == &*all;
      looks += is_all ? 'a' : 'p';
      return is_all ? at_all : at_peer;
    });
    return looks;
  }
  std::string looks(Receiver receiver, int times) {
    std::string all_looks;
    for (int i = 0; i < times; ++i) all_looks += look(receiver) + (i + 1 < times ? " " : "");
    return all_looks;
  }

  std::optional<net::UdpSocket> all;
  progress::ReceiveRight right;
  FlowWindows windows{kBuffer};
  PeerSockets sockets;
  uint32_t at_all = 0, at_peer = 0, packets = 0;
};

TEST_F(RocePeerSockets, Receive_NoPeerSocket_ReadsThePortsSocket) {
  at_all = 2;
  for (const Receiver receiver : {Receiver::kThread, Receiver::kPoller, Receiver::kSleeper}) {
    EXPECT_EQ(look(receiver), "a");
    EXPECT_EQ(packets, 2u);
  }
}

TEST_F(RocePeerSockets, Receive_ServingThread_ReadsBothSockets) {
  ASSERT_NO_FATAL_FAILURE(lead());
  at_all = 2;
  at_peer = 3;
  EXPECT_EQ(look(Receiver::kThread), "pa");
  EXPECT_EQ(packets, 5u);
}

TEST_F(RocePeerSockets, Receive_Poller_ReadsTheSocketOfTheLastPacketAndSometimesTheOther) {
  ASSERT_NO_FATAL_FAILURE(lead());
  EXPECT_EQ(looks(Receiver::kPoller, 8), "a a a p a a a p");
  at_peer = 1;
  EXPECT_EQ(looks(Receiver::kPoller, 4), "a a a p");
  EXPECT_EQ(looks(Receiver::kPoller, 8), "p p p a p p p a");
  at_all = 1;
  at_peer = 0;
  EXPECT_EQ(looks(Receiver::kPoller, 8), "p p p a a a a p");
}

TEST_F(RocePeerSockets, Receive_Sleeper_ReadsUntilItFindsPackets) {
  ASSERT_NO_FATAL_FAILURE(lead());
  EXPECT_EQ(look(Receiver::kSleeper), "ap");
  EXPECT_EQ(packets, 0u);
  at_peer = 1;
  EXPECT_EQ(looks(Receiver::kSleeper, 4), "ap p ap p");
  at_all = 1;
  EXPECT_EQ(packets, 1u);
  at_peer = 0;
  EXPECT_EQ(looks(Receiver::kSleeper, 2), "pa a");
  EXPECT_EQ(packets, 1u);
}

/// A datagram waits at the port of a further slot, and stays there.
class RoceFurtherPorts : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = net::UdpSocket::open(0, 1 << 18);
    ASSERT_TRUE(opened);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(opened->port());
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ports.add(std::make_unique<FurtherPort>(std::move(*opened)));
    const base::UniqueFd sender(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(sendto(sender.get(), "x", 1, 0, reinterpret_cast<sockaddr*>(&to), sizeof to), 1);
  }
  /// Of so many looks each that found it is an 'x'.
  std::string looks(Receiver receiver, int times, uint32_t packets) {
    std::string found;
    for (int i = 0; i < times; ++i) {
      found += '-';
      ports.receive(receiver, [&](const net::UdpSocket&) {
        found.back() = 'x';
        return packets;
      });
    }
    return found;
  }
  FurtherPorts ports;
};

TEST_F(RoceFurtherPorts, Receive_PollerOnAFurtherPort_ReadsSometimesUntilPacketsArrive) {
  EXPECT_EQ(looks(Receiver::kPoller, 8, 0), "---x---x");
  EXPECT_EQ(looks(Receiver::kPoller, 8, 1), "---xxxxx");
}

TEST_F(RoceFurtherPorts, Receive_OtherThreadsOnAFurtherPort_ReadEachTime) {
  EXPECT_EQ(looks(Receiver::kSleeper, 3, 0), "xxx");
  EXPECT_EQ(looks(Receiver::kThread, 3, 0), "xxx");
}

}  // namespace
}  // namespace nupa::roce
