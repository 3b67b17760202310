/// Sockets beside each other at one UDP port.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <optional>
#include <string>

#include "base/gid.h"
#include "io/udp_socket.h"

namespace nupa::io {
namespace {

constexpr uint32_t kBuffer = 1 << 16;

Gid loopback(uint8_t host) {
  Gid gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = 127;
  gid.raw[15] = host;
  return gid;
}

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
    ASSERT_TRUE(own) << own.error().what;
    own_.emplace(std::move(*own));
  }
  static UdpAddress at(const Result<UdpSocket>& socket, uint8_t host) { return {loopback(host), socket->port(), 0}; }
  Result<UdpSocket> here_ = fail(0, ""), peer_ = fail(0, "");
  std::optional<UdpSocket> own_;
};

TEST_F(AddressSockets, WhatComesToTheAddressComesThere) {
  UdpSocket::Received received;
  send(*peer_, at(here_, 1), "to the address");
  EXPECT_EQ(receive(*own_, &received), "to the address");
  EXPECT_EQ(received.from.port, peer_->port());
  EXPECT_EQ(received.from.address, loopback(1));
  EXPECT_EQ(received.to, loopback(1)) << "as the kernel would tell";
  EXPECT_TRUE(is_quiet(*here_));
}

TEST_F(AddressSockets, WhatComesToAnotherComesToThePort) {
  UdpSocket::Received received;
  send(*peer_, at(here_, 2), "to another");
  EXPECT_EQ(receive(*here_, &received), "to another");
  EXPECT_EQ(received.to, loopback(2));
  EXPECT_TRUE(is_quiet(*own_));
}

TEST_F(AddressSockets, WhatLeavesComesFromThePort) {
  UdpSocket::Received received;
  send(*own_, at(peer_, 1), "by its own");
  EXPECT_EQ(receive(*peer_, &received), "by its own");
  EXPECT_EQ(received.from.port, here_->port());
  EXPECT_EQ(received.from.address, loopback(1));
}

TEST_F(AddressSockets, AfterItIsClosedAllComesToThePort) {
  own_.reset();
  UdpSocket::Received received;
  send(*peer_, at(here_, 1), "again");
  EXPECT_EQ(receive(*here_, &received), "again");
}

TEST_F(AddressSockets, AnAddressOfAnotherHostHasNone) {
  Gid elsewhere = loopback(1);
  elsewhere.raw[12] = 192;  // 192.0.0.1, which is nobody's
  EXPECT_FALSE(UdpSocket::open_address(elsewhere, here_->port(), kBuffer));
}

}  // namespace
}  // namespace nupa::io
