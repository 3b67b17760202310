// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Helpers for tests with pairs of UDP sockets.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "net/udp_socket.h"

namespace nupa::net::batch_test {

constexpr uint32_t kRoom = 1 << 16;
constexpr int kSoonMs = 20'000;
constexpr uint8_t kEct0 = 2, kCongestionExperienced = 3;

inline Gid host(uint8_t last) {
  Gid gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = 127;
  gid.raw[15] = last;
  return gid;
}

inline Gid host6() {
  Gid gid;
  gid.raw[15] = 1;
  return gid;
}

/// 192.0.0.1, which no host has.
inline Gid unused_address() {
  Gid gid = host(1);
  gid.raw[12] = 192;
  return gid;
}

inline bool has_ipv6_loopback() {
  const base::UniqueFd fd(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return fd && bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

struct Datagram {
  std::string bytes;
  UdpSocket::Received received;
};

/// The next that comes, soon; `former`: what stood in the same place before. Once one is missing, later ones are not
/// waited for.
inline Datagram take_from(const UdpSocket& socket, const UdpSocket::Received& former = {}) {
  Datagram taken{"", former};
  pollfd ready{socket.fd(), POLLIN, 0};
  if (poll(&ready, 1, ::testing::Test::HasFailure() ? 0 : kSoonMs) != 1) {
    ADD_FAILURE() << "a datagram is missing";
    return taken;
  }
  std::vector<std::byte> buffer(UdpSocket::kMaxReceive);
  if (socket.receive(buffer.data(), UdpSocket::kMaxReceive, &taken.received))
    taken.bytes.assign(reinterpret_cast<const char*>(buffer.data()), taken.received.length);
  return taken;
}

/// Over the loopback a datagram has arrived when it has left.
inline bool has_nothing(const UdpSocket& socket) {
  pollfd ready{socket.fd(), POLLIN, 0};
  return poll(&ready, 1, 0) == 0;
}

}  // namespace nupa::net::batch_test
