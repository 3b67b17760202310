// SPDX-License-Identifier: Apache-2.0
/// Tests of several sockets at one UDP port.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>

#include <cstring>
#include <optional>
#include <string>

#include "base/gid.h"
#include "base/unique_fd.h"
#include "net/udp_socket.h"

namespace nupa::net {
namespace {

constexpr uint32_t kBuffer = 1 << 16;

Gid loopback(uint8_t host) { return base::ipv4_gid(127, 0, 0, host); }

void send(const UdpSocket& socket, const UdpAddress& to, std::string_view text) {
  UdpBatch batch;
  batch.begin(1, to, loopback(1), 0, {}, static_cast<uint32_t>(text.size()));
  batch.add(text.data(), static_cast<uint32_t>(text.size()));
  int error = 0;
  EXPECT_EQ(batch.flush(socket, &error), 0u) << strerror(error);
}

/// What comes within a second; empty: nothing.
std::string receive(const UdpSocket& socket, UdpSocket::Received* received) {
  pollfd ready{socket.fd(), POLLIN, 0};
  if (poll(&ready, 1, 1000) != 1) return "";
  std::byte buffer[256];
  if (!socket.receive(buffer, sizeof buffer, received)) return "";
  return {reinterpret_cast<const char*>(buffer), received->length};
}

bool is_quiet(const UdpSocket& socket) {
  pollfd ready{socket.fd(), POLLIN, 0};
  return poll(&ready, 1, 50) == 0;
}

class AddressSockets : public testing::Test {
 protected:
  void SetUp() override {
    here_ = UdpSocket::open(0, kBuffer);
    peer_ = UdpSocket::open(0, kBuffer);
    ASSERT_TRUE(here_ && peer_);
    auto own = UdpSocket::open_address(loopback(1), here_->port(), kBuffer);
    ASSERT_TRUE(own) << own.error().what();
    own_.emplace(std::move(*own));
  }
  static UdpAddress at(const Result<UdpSocket>& socket, uint8_t host) { return {loopback(host), socket->port(), 0}; }
  Result<UdpSocket> here_ = fail(0, ""), peer_ = fail(0, "");
  std::optional<UdpSocket> own_;
};

TEST_F(AddressSockets, Datagram_ToTheAddress_ArrivesAtItsSocket) {
  UdpSocket::Received received;
  send(*peer_, at(here_, 1), "to the address");
  EXPECT_EQ(receive(*own_, &received), "to the address");
  EXPECT_EQ(received.from.port, peer_->port());
  EXPECT_EQ(received.from.address, loopback(1));
  EXPECT_EQ(received.to, loopback(1)) << "as the kernel would tell";
  EXPECT_TRUE(is_quiet(*here_));
}

TEST_F(AddressSockets, Datagram_ToAnotherAddress_ArrivesAtThePort) {
  UdpSocket::Received received;
  send(*peer_, at(here_, 2), "to another");
  EXPECT_EQ(receive(*here_, &received), "to another");
  EXPECT_EQ(received.to, loopback(2));
  EXPECT_TRUE(is_quiet(*own_));
}

TEST_F(AddressSockets, Datagram_SentByTheAddressSocket_ComesFromThePort) {
  UdpSocket::Received received;
  send(*own_, at(peer_, 1), "by its own");
  EXPECT_EQ(receive(*peer_, &received), "by its own");
  EXPECT_EQ(received.from.port, here_->port());
  EXPECT_EQ(received.from.address, loopback(1));
}

TEST_F(AddressSockets, Datagram_AfterClosing_ArrivesAtThePort) {
  own_.reset();
  UdpSocket::Received received;
  send(*peer_, at(here_, 1), "again");
  EXPECT_EQ(receive(*here_, &received), "again");
}

TEST_F(AddressSockets, Datagram_OverIpv6WithoutAChecksum_IsReceived) {
  constexpr int kUdpNoCheck6Tx = 101;  // UDP_NO_CHECK6_TX
  const base::UniqueFd sender(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!sender || setsockopt(sender.get(), IPPROTO_UDP, kUdpNoCheck6Tx, &on, sizeof on) != 0) GTEST_SKIP() << "no IPv6";
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(here_->port());
  to.sin6_addr = in6addr_loopback;
  if (sendto(sender.get(), "bare", 4, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 4)
    GTEST_SKIP() << "no IPv6 loopback";
  UdpSocket::Received received;
  EXPECT_EQ(receive(*here_, &received), "bare");
}

TEST_F(AddressSockets, LeadTo_Peer_ReceivesFromThatPeerOnly) {
  auto unknown = UdpSocket::open(0, kBuffer);
  ASSERT_TRUE(unknown);
  ASSERT_TRUE(own_->lead_to(at(peer_, 1)));
  UdpSocket::Received received;
  send(*peer_, at(here_, 1), "of the peer");
  EXPECT_EQ(receive(*own_, &received), "of the peer");
  EXPECT_EQ(received.from.port, peer_->port());
  send(*unknown, at(here_, 1), "of an unknown sender");
  EXPECT_EQ(receive(*here_, &received), "of an unknown sender");
  EXPECT_EQ(received.to, loopback(1));
  send(*own_, at(unknown, 1), "to the peer all the same");
  EXPECT_EQ(receive(*peer_, &received), "to the peer all the same");

  ASSERT_TRUE(own_->lead_to(at(unknown, 1)));
  send(*unknown, at(here_, 1), "of a friend");
  EXPECT_EQ(receive(*own_, &received), "of a friend");
  send(*peer_, at(here_, 1), "of another");
  EXPECT_EQ(receive(*here_, &received), "of another");
}

TEST_F(AddressSockets, Identification_OfSegments_CountsMessages) {
  ASSERT_TRUE(own_->lead_to(at(peer_, 1)));
  const auto first = own_->learn_identification();
  if (!first) GTEST_SKIP() << first.error().what() << " (net.core.tstamp_allow_data)";
  const auto after = own_->learn_identification();
  ASSERT_TRUE(after);
  EXPECT_EQ(static_cast<uint16_t>(*first + 1), *after) << "its own empty message";
  constexpr std::string_view kText = "segment!";
  UdpBatch batch;
  for (const uint64_t place : {1, 2, 3})
    for (uint64_t segment = 0; segment < 2 * place; ++segment) {
      EXPECT_EQ(batch.next_message(place, kText.size()), place - 1);
      EXPECT_EQ(batch.next_position(place, kText.size()), segment);
      batch.begin(place, at(peer_, 1), loopback(1), 0, {}, kText.size());
      batch.add(kText.data(), kText.size());
    }
  EXPECT_EQ(batch.messages(), 3u);
  int error = 0;
  ASSERT_EQ(batch.flush(*own_, &error), 0u);
  const auto last = own_->learn_identification();
  ASSERT_TRUE(last);
  EXPECT_EQ(static_cast<uint16_t>(*after + 3 + 1), *last);
}

TEST_F(AddressSockets, Send_PeerHasClosed_LosesNoLaterMessage) {
  ASSERT_TRUE(own_->lead_to(at(peer_, 1)));
  const UdpAddress place = at(peer_, 1);
  peer_->close();
  send(*own_, place, "not received");
  peer_ = UdpSocket::open(place.port, kBuffer);
  ASSERT_TRUE(peer_);
  UdpSocket::Received received;
  send(*own_, place, "but this");
  EXPECT_EQ(receive(*peer_, &received), "but this");
}

TEST_F(AddressSockets, OpenAddress_OfAnotherHost_Fails) {
  Gid elsewhere = loopback(1);
  elsewhere.raw[12] = 192;  // 192.0.0.1, which is nobody's
  EXPECT_FALSE(UdpSocket::open_address(elsewhere, here_->port(), kBuffer));
}

}  // namespace
}  // namespace nupa::net
