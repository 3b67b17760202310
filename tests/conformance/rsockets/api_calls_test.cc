// SPDX-License-Identifier: Apache-2.0
/// Calls on an rsocket that are refused, and the addresses that calls accept and return.
#include <infiniband/ib.h>
#include <sys/resource.h>
#include <sys/select.h>

#include <climits>

#include "api_edges.h"
#include "api_support.h"

using namespace nupa::rsockets_test;

// rsocket().

TEST(RsocketsSocket, Rsocket_DomainTypeOrProtocolDoNotFit_IsRefused) {
  EXPECT_EQ(error_of(rsocket(AF_UNIX, SOCK_STREAM, 0)), ENOTSUP);
  EXPECT_EQ(error_of(rsocket(AF_INET, SOCK_SEQPACKET, 0)), ENOTSUP);
  EXPECT_EQ(error_of(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP)), ENOTSUP);
  EXPECT_EQ(error_of(rsocket(AF_INET, SOCK_DGRAM, IPPROTO_TCP)), ENOTSUP);
  EXPECT_EQ(error_of(rsocket(AF_IB, SOCK_DGRAM, 0)), ENOTSUP);
  for (const int domain : {AF_INET, AF_INET6, AF_IB}) {
    const Descriptor stream(rsocket(domain, SOCK_STREAM, IPPROTO_TCP));
    EXPECT_EQ(number_of(stream, SOL_SOCKET, SO_DOMAIN), domain);
    EXPECT_EQ(number_of(stream, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
    EXPECT_EQ(number_of(stream, SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
  }
  const Descriptor datagrams(rsocket(AF_INET, SOCK_DGRAM, IPPROTO_UDP));
  EXPECT_EQ(number_of(datagrams, SOL_SOCKET, SO_TYPE), SOCK_DGRAM);
}

TEST(RsocketsSocket, Rsocket_NoDescriptorIsFree_FailsWithEmfile) {
  const Descriptor first(rsocket(AF_INET, SOCK_STREAM, 0));  // what the process has once is there then
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(0);
  ASSERT_GE(next, 0);
  close(next);
  bool is_made = false;
  for (int more = 0; more < 16 && !is_made; ++more) {
    const rlimit few{static_cast<rlim_t>(next + more), before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    errno = 0;
    const int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    const int error = errno;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    is_made = fd >= 0;
    if (is_made)
      rclose(fd);
    else
      EXPECT_EQ(error, EMFILE) << "with " << more << " more";
  }
  EXPECT_TRUE(is_made);
}

TEST(RsocketsSocket, Rsocket_FlagsOfTheType_AreTheDescriptors) {
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    const Descriptor plain(rsocket(AF_INET, type, 0));
    EXPECT_EQ(rfcntl(plain, F_GETFL), O_RDWR);
    const Descriptor flagged(rsocket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    EXPECT_EQ(rfcntl(flagged, F_GETFL), O_RDWR | O_NONBLOCK);
    EXPECT_EQ(rfcntl(flagged, F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(fcntl(flagged, F_GETFD), FD_CLOEXEC);
    ASSERT_EQ(rfcntl(flagged, F_SETFD, 0), 0);
    EXPECT_EQ(fcntl(flagged, F_GETFD), 0);
    ASSERT_EQ(rfcntl(flagged, F_SETFD, FD_CLOEXEC), 0);
    EXPECT_EQ(fcntl(flagged, F_GETFD), FD_CLOEXEC);
    ASSERT_EQ(rfcntl(flagged, F_SETFL, O_WRONLY), 0) << "what a descriptor may do is not changed";
    EXPECT_EQ(rfcntl(flagged, F_GETFL), O_RDWR);
    EXPECT_EQ(error_of(rfcntl(flagged, F_DUPFD, 0)), ENOTSUP);
  }
}

TEST(RsocketsSocket, Calls_OnNoRsocket_FailWithEbadf) {
  sockaddr_in name = loopback(0);
  socklen_t length = sizeof name;
  char c = 0;
  const iovec piece{&c, 1};
  msghdr message{};
  int value = 0;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  for (const int fd : {kNoDescriptor, -1, INT_MAX, ends[0]}) {
    EXPECT_EQ(error_of(rbind(fd, as_sockaddr(name), sizeof name)), EBADF);
    EXPECT_EQ(error_of(rlisten(fd, 1)), EBADF);
    EXPECT_EQ(error_of(raccept(fd, nullptr, nullptr)), EBADF);
    EXPECT_EQ(error_of(rconnect(fd, as_sockaddr(name), sizeof name)), EBADF);
    EXPECT_EQ(error_of(rshutdown(fd, SHUT_WR)), EBADF);
    EXPECT_EQ(error_of(rclose(fd)), EBADF);
    EXPECT_EQ(error_of(rrecv(fd, &c, 1, 0)), EBADF);
    EXPECT_EQ(error_of(rreadv(fd, &piece, 1)), EBADF);
    EXPECT_EQ(error_of(rrecvmsg(fd, &message, 0)), EBADF);
    EXPECT_EQ(error_of(rsend(fd, &c, 1, 0)), EBADF);
    EXPECT_EQ(error_of(rwritev(fd, &piece, 1)), EBADF);
    EXPECT_EQ(error_of(rsendmsg(fd, &message, 0)), EBADF);
    EXPECT_EQ(error_of(rgetpeername(fd, as_out(&name), &length)), EBADF);
    EXPECT_EQ(error_of(rgetsockname(fd, as_out(&name), &length)), EBADF);
    EXPECT_EQ(error_of(rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof value)), EBADF);
    EXPECT_EQ(error_of(rgetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &length)), EBADF);
    EXPECT_EQ(error_of(rfcntl(fd, F_GETFL)), EBADF);
    EXPECT_EQ(error_of(riomap(fd, &c, 1, PROT_WRITE, 0, 0)), EBADF);
    EXPECT_EQ(error_of(riounmap(fd, &c, 1)), EBADF);
    EXPECT_EQ(error_of(static_cast<ssize_t>(riowrite(fd, &c, 1, 0, 0))), EBADF);
  }
  EXPECT_EQ(fcntl(ends[0], F_GETFD), 0) << "a descriptor of the program is left alone";
  close(ends[0]);
  close(ends[1]);
}

// A stream that is not connected.

TEST(RsocketsSocket, Calls_OnAnUnconnectedStream_FailWithEnotconn) {
  const Descriptor fd(rsocket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in name{};
  socklen_t length = sizeof name;
  char c = 0;
  EXPECT_EQ(error_of(rrecv(fd, &c, 1, 0)), ENOTCONN);
  EXPECT_EQ(error_of(rsend(fd, &c, 1, 0)), ENOTCONN);
  EXPECT_EQ(error_of(rgetpeername(fd, as_out(&name), &length)), ENOTCONN);
  EXPECT_EQ(error_of(rshutdown(fd, SHUT_RDWR)), ENOTCONN);
  EXPECT_EQ(error_of(rshutdown(fd, 3)), EINVAL);
  EXPECT_EQ(error_of(raccept(fd, nullptr, nullptr)), EINVAL);
  EXPECT_EQ(error_of(riomap(fd, &c, 1, PROT_WRITE, 0, 0)), EINVAL);
  EXPECT_EQ(error_of(riounmap(fd, &c, 1)), EINVAL);
  EXPECT_EQ(error_of(static_cast<ssize_t>(riowrite(fd, &c, 1, 0, 0))), ENOTCONN);
  pollfd entry{fd, POLLIN | POLLOUT, 0};
  EXPECT_EQ(rpoll(&entry, 1, 0), 1);
  EXPECT_EQ(entry.revents, POLLOUT | POLLHUP);
  entry.events = POLLIN;
  EXPECT_EQ(rpoll(&entry, 1, 0), 1);
  EXPECT_EQ(entry.revents, POLLHUP);
}

TEST_F(RsocketsEdges, Listener_SendOrReceive_IsRefused) {
  listen_now();
  EXPECT_EQ(number_of(listener, SOL_SOCKET, SO_ACCEPTCONN), 1);
  EXPECT_EQ(read_error(listener), ENOTCONN);
  EXPECT_EQ(write_error(listener), ENOTCONN);
  EXPECT_EQ(poll_one(listener, POLLIN | POLLOUT, 0), 0);
  EXPECT_EQ(error_of(rbind(listener, as_sockaddr(address), sizeof address)), EINVAL);
  const Descriptor other(rsocket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(number_of(other, SOL_SOCKET, SO_ACCEPTCONN), 0);
}

// Addresses.

TEST_F(RsocketsEdges, ShortAddresses_AreRefused) {
  const Descriptor fd(rsocket(AF_INET, SOCK_STREAM, 0));
  listen_now();
  for (const socklen_t length : {0u, 1u, 2u, 8u, 15u}) {
    EXPECT_EQ(error_of(rbind(fd, as_sockaddr(address), length)), EINVAL) << length;
    EXPECT_EQ(error_of(rconnect(fd, as_sockaddr(address), length)), EINVAL) << length;
  }
  const Descriptor six(rsocket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  EXPECT_EQ(error_of(rbind(six, reinterpret_cast<sockaddr*>(&any), sizeof(sockaddr_in))), EINVAL);
  EXPECT_EQ(rbind(six, reinterpret_cast<sockaddr*>(&any), sizeof any), 0);
  EXPECT_EQ(rconnect(fd, as_sockaddr(address), sizeof address), 0) << "after all that";
}

TEST_F(RsocketsEdges, Names_LongerThanTheBuffer_AreCutAndReturnTheirLength) {
  char name[sizeof(sockaddr_in) + 4];
  std::memset(name, 0x5a, sizeof name);
  socklen_t length = 4;
  ASSERT_EQ(rgetsockname(listener, reinterpret_cast<sockaddr*>(name), &length), 0);
  EXPECT_EQ(length, sizeof(sockaddr_in));
  EXPECT_EQ(std::memcmp(name, &address, 4), 0);
  EXPECT_EQ(name[4], 0x5a) << "beyond the room";
  length = sizeof name;
  ASSERT_EQ(rgetsockname(listener, reinterpret_cast<sockaddr*>(name), &length), 0);
  EXPECT_EQ(length, sizeof(sockaddr_in));
  EXPECT_EQ(name[sizeof(sockaddr_in)], 0x5a);
}

TEST_F(RsocketsEdges, Accept_ReturnsThePeersName) {
  listen_now();
  client = connect_one();
  sockaddr_in local{};
  socklen_t length = sizeof local;
  ASSERT_EQ(rgetsockname(client, as_out(&local), &length), 0);
  sockaddr_in peer{};
  length = 4;
  server = raccept(listener, as_out(&peer), &length);
  ASSERT_GE(server, 0);
  EXPECT_EQ(length, sizeof peer);
  EXPECT_EQ(std::memcmp(&peer, &local, 4), 0);
  EXPECT_EQ(peer.sin_addr.s_addr, 0u) << "beyond the room";
  ASSERT_EQ(rsend(client, "x", 1, 0), 1);
  char c;
  peer = {};
  length = sizeof peer;
  ASSERT_EQ(rrecvfrom(server, &c, 1, 0, as_out(&peer), &length), 1);
  EXPECT_EQ(peer.sin_port, local.sin_port);
  EXPECT_EQ(length, sizeof peer);
}

TEST_F(RsocketsEdges, Bind_PortInUse_IsRefusedUnlessBothSetReuseAddr) {
  const Descriptor other(rsocket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(error_of(rbind(other, as_sockaddr(address), sizeof address)), EADDRINUSE);
  const Descriptor first(rsocket(AF_INET, SOCK_STREAM, 0));
  const Descriptor second(rsocket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in any = loopback(0);
  ASSERT_EQ(rbind(first, as_sockaddr(any), sizeof any), 0);
  sockaddr_in port{};
  socklen_t length = sizeof port;
  ASSERT_EQ(rgetsockname(first, as_out(&port), &length), 0);
  EXPECT_EQ(number_of(second, SOL_SOCKET, SO_REUSEADDR), 0);
  ASSERT_EQ(set_number(second, SOL_SOCKET, SO_REUSEADDR, 1), 0);
  EXPECT_EQ(number_of(second, SOL_SOCKET, SO_REUSEADDR), 1);
  EXPECT_EQ(rbind(second, as_sockaddr(port), sizeof port), 0) << "it does not listen yet";
  EXPECT_EQ(error_of(rlisten(second, 1)), EADDRINUSE);
  EXPECT_EQ(rlisten(first, 1), 0);
}

TEST_F(RsocketsEdges, Bind_AddressOfAnotherHost_IsRefused) {
  const Descriptor fd(rsocket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in other = loopback(0);
  other.sin_addr.s_addr = htonl(0xc000024d);  // 192.0.2.77
  EXPECT_NE(error_of(rbind(fd, as_sockaddr(other), sizeof other)), 0);
}

// riomap() and datagrams' calls on streams, and the other way round.

TEST(RsocketsSocket, Datagrams_ListenOrMapBuffers_IsRefused) {
  const Descriptor fd(rsocket(AF_INET, SOCK_DGRAM, 0));
  char c = 0;
  EXPECT_EQ(error_of(riomap(fd, &c, 1, PROT_WRITE, 0, 0)), EINVAL);
  EXPECT_EQ(error_of(riounmap(fd, &c, 1)), EINVAL);
  EXPECT_EQ(error_of(static_cast<ssize_t>(riowrite(fd, &c, 1, 0, 0))), ENOTCONN);
  EXPECT_EQ(error_of(rlisten(fd, 1)), EOPNOTSUPP);
  EXPECT_EQ(error_of(raccept(fd, nullptr, nullptr)), EOPNOTSUPP);
}

TEST_F(RsocketsEdges, Connect_Again_IsRefusedInEachState) {
  make_pair();
  for (const int fd : {client, server}) {
    EXPECT_EQ(error_of(rconnect(fd, as_sockaddr(address), sizeof address)), EISCONN);
    EXPECT_EQ(error_of(rlisten(fd, 1)), EINVAL);
    EXPECT_EQ(error_of(raccept(fd, nullptr, nullptr)), EINVAL);
    EXPECT_EQ(error_of(rbind(fd, as_sockaddr(loopback(0)), sizeof address)), EINVAL);
  }
  ASSERT_EQ(rshutdown(client, SHUT_RDWR), 0);
  EXPECT_EQ(error_of(rconnect(client, as_sockaddr(address), sizeof address)), EISCONN);
  sockaddr_in peer{};
  socklen_t length = sizeof peer;
  EXPECT_EQ(rgetpeername(client, as_out(&peer), &length), 0);
}

TEST_F(RsocketsEdges, Connect_ToAnAddressOfAnotherFamily_LeavesTheRsocketUnchanged) {
  listen_now();
  const Descriptor fd(rsocket(AF_INET, SOCK_STREAM, 0));
  const sockaddr no_ip{AF_UNIX, {}};
  EXPECT_EQ(error_of(rconnect(fd, &no_ip, sizeof no_ip)), EAFNOSUPPORT);
  const sockaddr_in any = loopback(0);
  ASSERT_EQ(rbind(fd, as_sockaddr(any), sizeof any), 0) << std::strerror(errno);
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_addr = in6addr_loopback;
  six.sin6_port = address.sin_port;
  EXPECT_EQ(error_of(rconnect(fd, reinterpret_cast<sockaddr*>(&six), sizeof six)), EINVAL) << "it is bound to IPv4";
  EXPECT_EQ(rconnect(fd, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
}

TEST_F(RsocketsEdges, Connect_ListenerWasClosed_IsRefused) {
  const Descriptor fd(rsocket(AF_INET, SOCK_STREAM, 0));
  rclose(listener);
  listener = -1;
  EXPECT_EQ(error_of(rconnect(fd, as_sockaddr(address), sizeof address)), ECONNREFUSED);
  EXPECT_EQ(error_of(rconnect(fd, as_sockaddr(address), sizeof address)), ECONNABORTED);
  EXPECT_EQ(read_error(fd), 0);
  EXPECT_EQ(write_error(fd), EPIPE);
}
