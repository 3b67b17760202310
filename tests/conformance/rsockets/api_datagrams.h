// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Datagram rsockets in one process, and a plain UDP socket.
#include <rdma/rsocket.h>
#include <sys/socket.h>

#include "rsockets/wire.h"
#include "api_support.h"

namespace nupa::rsockets_test {

using rsockets::DatagramHeader;
using rsockets::UdpHeader;

constexpr size_t kMostByUdp = 2048 - 16;  ///< a buffer without its header

class Datagrams : public testing::Test {
 protected:
  struct End {
    int fd = -1;
    sockaddr_in address{};
  };

  void SetUp() override {
    one = open();
    two = open();
  }
  void TearDown() override {
    for (const End& end : {one, two, three}) {
      if (end.fd >= 0) rclose(end.fd);
    }
    if (udp.fd >= 0) close(udp.fd);
  }
  static End open() {
    End end;
    end.fd = rsocket(AF_INET, SOCK_DGRAM, 0);
    end.address = loopback(0);
    const timeval limit{kSoonMs / 1000, 0};  // what never comes fails the test
    EXPECT_EQ(rsetsockopt(end.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    EXPECT_EQ(rsetsockopt(end.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
    socklen_t length = sizeof end.address;
    EXPECT_EQ(rbind(end.fd, as_sockaddr(end.address), sizeof end.address), 0) << std::strerror(errno);
    EXPECT_EQ(rgetsockname(end.fd, reinterpret_cast<sockaddr*>(&end.address), &length), 0);
    EXPECT_NE(end.address.sin_port, 0);
    return end;
  }
  /// A UDP socket of the system's.
  void open_udp() {
    udp.fd = socket(AF_INET, SOCK_DGRAM, 0);
    udp.address = loopback(0);
    socklen_t length = sizeof udp.address;
    ASSERT_EQ(bind(udp.fd, as_sockaddr(udp.address), sizeof udp.address), 0);
    ASSERT_EQ(getsockname(udp.fd, reinterpret_cast<sockaddr*>(&udp.address), &length), 0);
    const timeval limit{10, 0};
    ASSERT_EQ(setsockopt(udp.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  }
  static int send(const End& from, const End& to, const std::string& text) {
    return error_of(rsendto(from.fd, text.data(), text.size(), 0, as_sockaddr(to.address), sizeof to.address));
  }
  /// What comes within the time of a test, and from where.
  static std::string receive(const End& at, sockaddr_in* from = nullptr) {
    pollfd entry{at.fd, POLLIN, 0};
    if (rpoll(&entry, 1, kSoonMs) != 1) return "nothing came";
    char room[4096];
    sockaddr_in source{};
    socklen_t length = sizeof source;
    const ssize_t count =
        rrecvfrom(at.fd, room, sizeof room, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&source), &length);
    if (count < 0) return std::strerror(errno);
    if (from != nullptr) *from = source;
    return {room, static_cast<size_t>(count)};
  }
  static int receive_error(const End& at) {
    char c;
    return error_of(rrecv(at.fd, &c, 1, MSG_DONTWAIT));
  }
  /// Both know each other's queue pairs.
  void meet(const End& a, const End& b) {
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(send(a, b, "to b"), 0);
      ASSERT_EQ(receive(b), "to b");
      ASSERT_EQ(send(b, a, "to a"), 0);
      ASSERT_EQ(receive(a), "to a");
    }
  }
  /// A datagram of the UDP socket, with a header that is as it should be but for what `change` does.
  template <class Change>
  void send_by_udp(const End& to, rsockets::Op op, const std::string& text, Change change, size_t header_bytes = 16) {
    UdpHeader header{};
    header.tag = htobe32(0x55555555);
    header.version = 4;
    header.op = static_cast<uint8_t>(op);
    header.length = 16;
    header.qpn = htobe32(0x77);
    header.addr.ipv4 = htonl(INADDR_LOOPBACK);
    change(header);
    std::string bytes(reinterpret_cast<const char*>(&header), header_bytes);
    bytes += text;
    ASSERT_EQ(sendto(udp.fd, bytes.data(), bytes.size(), 0, as_sockaddr(to.address), sizeof to.address),
              static_cast<ssize_t>(bytes.size()));
  }
  void send_by_udp(const End& to, rsockets::Op op, const std::string& text) {
    send_by_udp(to, op, text, [](UdpHeader&) {});
  }

  End one, two, three, udp;
};

}  // namespace nupa::rsockets_test
