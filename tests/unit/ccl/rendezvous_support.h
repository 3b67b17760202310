// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Rendezvous servers and clients for tests.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "ccl/bootstrap/rendezvous.h"

namespace nupa::ccl {

constexpr int64_t kTimeoutNs = 30'000'000'000;
constexpr int64_t kShortNs = 300'000'000;
inline const RendezvousLimits kLongLimits{kTimeoutNs, kTimeoutNs};

inline Gid loopback() { return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}}; }

inline PeerInfoBytes peer_info_of(uint32_t rank) {
  // Of different lengths, the first one empty.
  PeerInfoBytes peer_info(rank % 100);
  for (size_t i = 0; i < peer_info.size(); ++i) peer_info[i] = static_cast<std::byte>(rank + i);
  return peer_info;
}

inline std::unique_ptr<RendezvousServer> root_with(int64_t limit_ns = kTimeoutNs) {
  auto root = RendezvousServer::start(limit_ns, {loopback()});
  EXPECT_TRUE(root) << root.error().what();
  return root ? std::move(*root) : nullptr;
}

/// Connects to the server as a client that is no rank.
inline base::UniqueFd connect_to_server(const UniqueId& id, int receive_buffer = 0) {
  base::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (receive_buffer > 0) setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(id.port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  return fd;
}

/// Whether a rank of this process has connected to the root.
inline bool has_connection_to(const UniqueId& id) {
  constexpr int kDescriptors = 1024;
  for (int fd = 0; fd < kDescriptors; ++fd) {
    sockaddr_in6 peer{};  // the port has the same place in sockaddr_in
    socklen_t length = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    if ((peer.sin6_family == AF_INET6 || peer.sin6_family == AF_INET) && ntohs(peer.sin6_port) == id.port) return true;
  }
  return false;
}

inline void expect_complete_rendezvous(const UniqueId& id, uint32_t world, uint64_t rendezvous = 0) {
  std::vector<std::thread> ranks;
  std::atomic<uint32_t> right{0};
  for (uint32_t rank = 0; rank < world; ++rank)
    ranks.emplace_back([&, rank] {
      const auto peer_infos = join_rendezvous(id, rendezvous, rank, world, peer_info_of(rank), kLongLimits);
      ASSERT_TRUE(peer_infos) << peer_infos.error().what();
      ASSERT_EQ(peer_infos->peer_infos.size(), world);
      for (uint32_t other = 0; other < world; ++other) ASSERT_EQ(peer_infos->peer_infos[other], peer_info_of(other));
      ++right;
    });
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(right, world);
}

inline void send_bytes(const base::UniqueFd& fd, const std::vector<std::byte>& what) {
  ASSERT_EQ(send(fd.get(), what.data(), what.size(), MSG_NOSIGNAL), static_cast<ssize_t>(what.size()));
}

}  // namespace nupa::ccl
