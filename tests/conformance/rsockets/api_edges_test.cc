// SPDX-License-Identifier: Apache-2.0
// The calls of rsockets at their edges: what they refuse, and what each end sees of the other's calls.
#include <climits>
#include <csignal>
#include <infiniband/ib.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>
#include <iterator>

#include "api_support.h"
#include "../../support/sanitizers.h"

using namespace nupa::rsockets_test;

namespace {

constexpr int kNoDescriptor = 12345;
constexpr int kOtherOption = 12345;

sockaddr* as_out(sockaddr_in* address) { return reinterpret_cast<sockaddr*>(address); }

/// Descriptors that are closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) { EXPECT_GE(fd, 0) << std::strerror(errno); }
  ~Descriptor() {
    if (fd_ >= 0) rclose(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return fd_; }

 private:
  int fd_;
};

class RsocketsEdges : public RsocketsApi {
 protected:
  int read_error(int fd, int flags = MSG_DONTWAIT) {
    char c;
    return error_of(rrecv(fd, &c, 1, flags));
  }
  int write_error(int fd, int flags = MSG_DONTWAIT) { return error_of(rsend(fd, "x", 1, flags)); }
  /// Until data or an end is there to read.
  void wait_readable(int fd) { ASSERT_NE(poll_one(fd, POLLIN, kSoonMs), 0); }
  /// Until the peer's shutdown has come.
  void wait_peer_shut(int fd) { ASSERT_NE(poll_one(fd, POLLRDHUP, kSoonMs) & POLLRDHUP, 0); }
  /// Sends until the peer has no room.
  void fill(int from, int to) {
    auto left = static_cast<size_t>(number_of(to, SOL_SOCKET, SO_RCVBUF));
    const std::vector<char> data(left);
    while (left != 0) {
      const ssize_t count = rsend(from, data.data(), left, 0);
      ASSERT_GT(count, 0);
      left -= static_cast<size_t>(count);
    }
  }
};

using RsocketsCalls = RsocketsEdges;

}  // namespace

// rsocket().

TEST(RsocketsSocket, DomainTypeAndProtocolHaveToFit) {
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

TEST(RsocketsSocket, WithoutDescriptors_SaysSo) {
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

TEST(RsocketsSocket, FlagsOfTheTypeAreFlagsOfTheDescriptor) {
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

TEST(RsocketsSocket, WhatIsNoRsocketIsABadDescriptor) {
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

TEST(RsocketsSocket, AStreamThatIsNotConnectedSaysSo) {
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

TEST_F(RsocketsEdges, AListenerHasNoData) {
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

TEST_F(RsocketsEdges, ShortAddressesAreRefused) {
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

TEST_F(RsocketsEdges, NamesGoAsFarAsTheRoomAndSayTheirLength) {
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

TEST_F(RsocketsEdges, AcceptGivesThePeersName) {
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

TEST_F(RsocketsEdges, APortHasOneListenerUnlessBothShareIt) {
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

TEST_F(RsocketsEdges, AnAddressOfAnotherHostIsNotBound) {
  const Descriptor fd(rsocket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in other = loopback(0);
  other.sin_addr.s_addr = htonl(0xc000024d);  // 192.0.2.77
  EXPECT_NE(error_of(rbind(fd, as_sockaddr(other), sizeof other)), 0);
}

// Listening and accepting.

TEST_F(RsocketsEdges, ListeningAgainKeepsWhatWaits) {
  listen_now(1);
  client = connect_one();
  ASSERT_GE(client, 0);
  EXPECT_EQ(rlisten(listener, 20), 0);
  server = raccept(listener, nullptr, nullptr);
  EXPECT_GE(server, 0);
}

TEST_F(RsocketsEdges, ABacklogOfOneHoldsSixteenAndNoMore) {
  listen_now(1);
  std::vector<std::unique_ptr<Descriptor>> clients;
  for (int i = 0; i < 16; ++i) clients.push_back(std::make_unique<Descriptor>(connect_one()));
  // Connections count until they are accepted.
  ASSERT_TRUE(await([&] { return poll_one(listener, POLLIN, 0) == POLLIN; }));
  EXPECT_EQ(error_of(connect_one()), ECONNREFUSED);
  rclose(raccept(listener, nullptr, nullptr));
  const Descriptor next(connect_one());
  EXPECT_EQ(error_of(connect_one()), ECONNREFUSED);
  EXPECT_EQ(rlisten(listener, 17), 0);
  const Descriptor more(connect_one());
}

TEST_F(RsocketsEdges, AListenerThatIsShutDownRefuses) {
  listen_now();
  client = connect_one();
  ASSERT_GE(client, 0);
  EXPECT_EQ(error_of(rshutdown(listener, 7)), EINVAL);
  EXPECT_EQ(rshutdown(listener, SHUT_WR), 0) << "a listener writes nothing";
  EXPECT_EQ(poll_one(listener, 0, 0), 0);
  const Descriptor second(connect_one());
  ASSERT_EQ(rshutdown(listener, SHUT_RD), 0);
  EXPECT_EQ(error_of(connect_one()), ECONNREFUSED);
  server = raccept(listener, nullptr, nullptr);
  EXPECT_GE(server, 0) << "it was there before";
  const Descriptor accepted(raccept(listener, nullptr, nullptr));
  EXPECT_EQ(error_of(raccept(listener, nullptr, nullptr)), EINVAL);
}

TEST_F(RsocketsEdges, AnAcceptThatWaitsIsWokenByShutdown) {
  listen_now();
  int error = 0;
  std::atomic<bool> waits{false};
  std::thread waiter([&] {
    waits = true;
    error = error_of(raccept(listener, nullptr, nullptr));
  });
  ASSERT_TRUE(await([&] { return waits.load(); }));
  EXPECT_EQ(rshutdown(listener, SHUT_RDWR), 0);
  waiter.join();
  EXPECT_EQ(error, EINVAL);
}

TEST_F(RsocketsEdges, Close_OfAListenerThatAnotherThreadPolls_WaitsForNobody) {
  listen_now();
  std::atomic<pid_t> thread{0};
  int events = 0;
  std::thread waiting([&] {
    thread = gettid();
    events = poll_one(listener, POLLIN, -1);
  });
  EXPECT_TRUE(await([&] { return thread != 0; }) && await_sleep(thread));
  EXPECT_EQ(rclose(listener), 0);
  waiting.join();
  EXPECT_EQ(events, POLLIN | POLLHUP);
  listener = -1;
}

TEST_F(RsocketsEdges, AChildOfAListeningProcessAnswersConnectionsItself) {
  if (nupa::test::kThreadSanitizer) GTEST_SKIP() << nupa::test::kNoThreadInChild;
  listen_now();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(2 * kSoonMs / 1000);
    const int own = rsocket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in name = loopback(0);
    socklen_t length = sizeof name;
    EXPECT_EQ(rbind(own, as_sockaddr(name), sizeof name), 0) << std::strerror(errno);
    EXPECT_EQ(rgetsockname(own, as_out(&name), &length), 0);
    EXPECT_EQ(rlisten(own, 1), 0) << std::strerror(errno);
    const int asking = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    const int error = error_of(rconnect(asking, as_sockaddr(name), sizeof name));
    EXPECT_TRUE(error == 0 || error == EINPROGRESS) << std::strerror(error);
    EXPECT_EQ(poll_one(asking, POLLOUT, kSoonMs), POLLOUT);
    EXPECT_EQ(number_of(asking, SOL_SOCKET, SO_ERROR), 0);
    _exit(HasFailure() ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(RsocketsEdges, Close_OfAnInheritedListenerInAChild_TheParentStillAnswers) {
  listen_now();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(2 * kSoonMs / 1000);
    if (rclose(listener) != 0) _exit(1);
    // For that it opens nothing of its own, and begins no thread.
    const std::filesystem::directory_iterator threads("/proc/self/task");
    _exit(std::distance(begin(threads), end(threads)) == 1 ? 0 : 2);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const int error = error_of(rconnect(client, as_sockaddr(address), sizeof address));
  EXPECT_TRUE(error == 0 || error == EINPROGRESS) << std::strerror(error);
  ASSERT_EQ(poll_one(client, POLLOUT, kSoonMs), POLLOUT);
  EXPECT_EQ(number_of(client, SOL_SOCKET, SO_ERROR), 0);
  ASSERT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
  server = raccept(listener, nullptr, nullptr);
  EXPECT_GE(server, 0);
}

TEST_F(RsocketsEdges, Close_OfAnInheritedConnectionInAChild_TheParentKeepsIt) {
  make_pair();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(2 * kSoonMs / 1000);
    _exit(rclose(client) == 0 && rclose(server) == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_error(server), EAGAIN);
  EXPECT_EQ(rsend(client, "x", 1, 0), 1);
  wait_readable(server);
  EXPECT_EQ(read_error(server), 0);
}

TEST_F(RsocketsEdges, Fork_WhileAThreadSends_TheChildClosesItsCopy) {
  make_pair();
  fill(client, server);
  std::atomic<pid_t> thread{0};
  std::atomic<ssize_t> sent{0};
  std::thread sending([&] {
    thread = gettid();
    sent = rsend(client, "x", 1, 0);
  });
  EXPECT_TRUE(await([&] { return thread != 0; }) && await_sleep(thread));
  const pid_t child = fork();
  if (child == 0) {
    alarm(2 * kSoonMs / 1000);
    _exit(rclose(client) == 0 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(await([&] {
    char room[4096];
    rrecv(server, room, sizeof room, MSG_DONTWAIT);
    return sent != 0;
  }));
  sending.join();
  EXPECT_EQ(sent, 1);
}

TEST_F(RsocketsEdges, AcceptWaitsNoLongerThanTheReceiveTimeout) {
  listen_now();
  const timeval limit{0, 10'000};
  ASSERT_EQ(rsetsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(error_of(raccept(listener, nullptr, nullptr)), EAGAIN);
}

TEST_F(RsocketsEdges, APollOfAListenerSleepsUntilAConnectionComes) {
  listen_now();
  std::atomic<bool> waits{false};
  int events = 0;
  std::thread waiter([&] {
    waits = true;
    events = poll_one(listener, POLLIN, kSoonMs);
  });
  ASSERT_TRUE(await([&] { return waits.load(); }));
  std::this_thread::sleep_for(
      std::chrono::milliseconds(5));  // it sleeps most likely; if it does not, that is good, too
  client = connect_one();
  waiter.join();
  EXPECT_EQ(events, POLLIN);
  server = raccept(listener, nullptr, nullptr);
  ASSERT_GE(server, 0);
  EXPECT_EQ(poll_one(listener, POLLIN, 20), 0) << "nor does it wake for one that was accepted";
}

TEST_F(RsocketsEdges, AConnectionDoesNotInheritNonBlocking) {
  listen_now();
  ASSERT_EQ(rfcntl(listener, F_SETFL, O_NONBLOCK), 0);
  client = connect_one();
  ASSERT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
  server = raccept(listener, nullptr, nullptr);
  EXPECT_EQ(rfcntl(server, F_GETFL), O_RDWR);
}

TEST_F(RsocketsEdges, OptionsOfAListenerGoOverToItsConnections) {
  ASSERT_EQ(set_number(listener, SOL_SOCKET, SO_RCVBUF, 30'000), 0);
  ASSERT_EQ(set_number(listener, SOL_SOCKET, SO_SNDBUF, 30'000), 0);
  ASSERT_EQ(set_number(listener, SOL_RDMA, RDMA_SQSIZE, 40), 0);
  ASSERT_EQ(set_number(listener, SOL_RDMA, RDMA_RQSIZE, 50), 0);
  ASSERT_EQ(set_number(listener, IPPROTO_TCP, TCP_NODELAY, 1), 0);
  make_pair();
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_RCVBUF), 60'000);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_SNDBUF), 65'536) << "a power of two";
  EXPECT_EQ(number_of(server, SOL_RDMA, RDMA_SQSIZE), 40);
  EXPECT_EQ(number_of(server, SOL_RDMA, RDMA_RQSIZE), 50);
  EXPECT_EQ(number_of(server, IPPROTO_TCP, TCP_NODELAY), 1);
}

// Options.

TEST_F(RsocketsEdges, OptionsOfAWrongLengthOrNameAreRefused) {
  const int number = 1;
  const auto set = [&](int level, int name, const void* value, socklen_t length) {
    return error_of(rsetsockopt(listener, level, name, value, length));
  };
  for (const auto& [level, name] : {std::pair(SOL_SOCKET, SO_REUSEADDR),
                                    {SOL_SOCKET, SO_RCVBUF},
                                    {SOL_SOCKET, SO_KEEPALIVE},
                                    {SOL_RDMA, RDMA_SQSIZE},
                                    {IPPROTO_TCP, TCP_NODELAY},
                                    {IPPROTO_IPV6, IPV6_V6ONLY}}) {
    EXPECT_EQ(set(level, name, &number, sizeof number - 1), EINVAL) << level << " " << name;
    EXPECT_EQ(set(level, name, nullptr, sizeof number), EINVAL) << level << " " << name;
    EXPECT_EQ(set(level, kOtherOption, &number, sizeof number), ENOPROTOOPT) << level;
    char room[16];
    socklen_t length = sizeof room;
    EXPECT_EQ(error_of(rgetsockopt(listener, level, kOtherOption, room, &length)), ENOPROTOOPT) << level;
    EXPECT_EQ(error_of(rgetsockopt(listener, level, name, nullptr, &length)), EFAULT);
    EXPECT_EQ(error_of(rgetsockopt(listener, level, name, room, nullptr)), EFAULT);
    length = 1;
    std::memset(room, 0x5a, sizeof room);
    EXPECT_EQ(rgetsockopt(listener, level, name, room, &length), 0) << level << " " << name;
    EXPECT_EQ(length, 1u);
    EXPECT_EQ(room[1], 0x5a) << "beyond the room";
  }
  const timeval time{};
  const linger end{};
  EXPECT_EQ(set(SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time - 1), EINVAL);
  EXPECT_EQ(set(SOL_SOCKET, SO_SNDTIMEO, &time, sizeof number), EINVAL);
  EXPECT_EQ(set(SOL_SOCKET, SO_LINGER, &end, sizeof number), EINVAL);
  EXPECT_EQ(set(SOL_IP, 1, &number, sizeof number), ENOPROTOOPT);
  EXPECT_EQ(set(IPPROTO_TCP, TCP_KEEPIDLE, &number, sizeof number), 0);
  const int none = 0;
  EXPECT_EQ(set(IPPROTO_TCP, TCP_KEEPIDLE, &none, sizeof none), EINVAL);
  const int negative = -1;
  for (const int name : {RDMA_SQSIZE, RDMA_RQSIZE, RDMA_INLINE, RDMA_IOMAPSIZE}) {
    EXPECT_EQ(set(SOL_RDMA, name, &negative, sizeof negative), EINVAL) << name;
  }
  EXPECT_EQ(set(SOL_RDMA, RDMA_ROUTE, &number, sizeof number), EINVAL);
  EXPECT_EQ(set(SOL_RDMA, RDMA_ROUTE, nullptr, sizeof(ibv_path_data)), EINVAL);
}

TEST_F(RsocketsEdges, EachOptionIsWhatWasSet) {
  const auto check = [&](int level, int name, int value, int expected) {
    EXPECT_EQ(set_number(listener, level, name, value), 0) << level << " " << name;
    EXPECT_EQ(number_of(listener, level, name), expected) << level << " " << name;
  };
  for (const auto& [level, name] : {std::pair(SOL_SOCKET, SO_REUSEPORT),
                                    {SOL_SOCKET, SO_KEEPALIVE},
                                    {SOL_SOCKET, SO_OOBINLINE},
                                    {IPPROTO_TCP, TCP_NODELAY}}) {
    EXPECT_EQ(number_of(listener, level, name), 0);
    check(level, name, 7, 1);
    check(level, name, 0, 0);
  }
  check(IPPROTO_TCP, TCP_KEEPIDLE, 12, 12);
  check(IPPROTO_TCP, TCP_KEEPINTVL, 13, 13);
  check(IPPROTO_TCP, TCP_KEEPCNT, 14, 14);
  check(SOL_SOCKET, SO_RCVLOWAT, 9, 1);
  check(SOL_SOCKET, SO_RCVBUF, 10'000, 20'000);
  check(SOL_SOCKET, SO_SNDBUF, 11'000, 22'000);
  check(SOL_SOCKET, SO_RCVBUF, 1, 4096);
  check(SOL_SOCKET, SO_SNDBUF, -5, 4096);
  check(SOL_SOCKET, SO_RCVBUF, INT_MAX, 1 << 30);
  check(SOL_RDMA, RDMA_SQSIZE, 21, 21);
  check(SOL_RDMA, RDMA_RQSIZE, 22, 22);
  check(SOL_RDMA, RDMA_INLINE, 23, 23);
  check(SOL_RDMA, RDMA_IOMAPSIZE, 24, 24);
  check(SOL_RDMA, RDMA_SQSIZE, INT_MAX, 0xfffe);
  check(SOL_RDMA, RDMA_RQSIZE, INT_MAX, 0xfffe);
  EXPECT_EQ(set_number(listener, SOL_SOCKET, SO_PRIORITY, 1), 0);
  EXPECT_EQ(set_number(listener, IPPROTO_TCP, TCP_MAXSEG, 1000), 0);
  EXPECT_EQ(number_of(listener, IPPROTO_TCP, TCP_MAXSEG), 2048) << "before there is a path";
}

TEST_F(RsocketsEdges, TimeoutsAndLingerAreWhatWasSet) {
  for (const int name : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    const timeval set{3, 250'001};
    ASSERT_EQ(rsetsockopt(listener, SOL_SOCKET, name, &set, sizeof set), 0);
    timeval got{};
    socklen_t length = sizeof got;
    ASSERT_EQ(rgetsockopt(listener, SOL_SOCKET, name, &got, &length), 0);
    EXPECT_EQ(got.tv_sec, 3);
    EXPECT_EQ(got.tv_usec, 251'000) << "rounded up to milliseconds";
    const timeval none{};
    ASSERT_EQ(rsetsockopt(listener, SOL_SOCKET, name, &none, sizeof none), 0);
    ASSERT_EQ(rgetsockopt(listener, SOL_SOCKET, name, &got, &length), 0);
    EXPECT_EQ(got.tv_sec, 0);
    EXPECT_EQ(got.tv_usec, 0);
  }
  linger got{7, 7};
  socklen_t length = sizeof got;
  ASSERT_EQ(rgetsockopt(listener, SOL_SOCKET, SO_LINGER, &got, &length), 0);
  EXPECT_EQ(got.l_onoff, 0);
  const linger set{1, 5};
  ASSERT_EQ(rsetsockopt(listener, SOL_SOCKET, SO_LINGER, &set, sizeof set), 0);
  ASSERT_EQ(rgetsockopt(listener, SOL_SOCKET, SO_LINGER, &got, &length), 0);
  EXPECT_EQ(got.l_onoff, 1);
  EXPECT_EQ(got.l_linger, 5);
  const linger off{0, 9};
  ASSERT_EQ(rsetsockopt(listener, SOL_SOCKET, SO_LINGER, &off, sizeof off), 0);
  ASSERT_EQ(rgetsockopt(listener, SOL_SOCKET, SO_LINGER, &got, &length), 0);
  EXPECT_EQ(got.l_onoff, 0);
  EXPECT_EQ(got.l_linger, 0);
}

TEST_F(RsocketsEdges, SizesAreFixedWhenTheConnectionStands) {
  make_pair();
  const int before = number_of(client, SOL_SOCKET, SO_RCVBUF);
  EXPECT_EQ(set_number(client, SOL_SOCKET, SO_RCVBUF, 9999), 0);
  EXPECT_EQ(set_number(client, SOL_SOCKET, SO_SNDBUF, 9999), 0);
  EXPECT_EQ(number_of(client, SOL_SOCKET, SO_RCVBUF), before);
  EXPECT_EQ(number_of(client, SOL_SOCKET, SO_SNDBUF), before);
  for (const int name : {RDMA_SQSIZE, RDMA_RQSIZE, RDMA_INLINE, RDMA_IOMAPSIZE}) {
    EXPECT_EQ(set_number(client, SOL_RDMA, name, 20), EINVAL) << name;
  }
  EXPECT_EQ(set_number(client, SOL_SOCKET, SO_REUSEADDR, 1), 0) << "of no meaning, but programs set it";
  EXPECT_GT(number_of(client, IPPROTO_TCP, TCP_MAXSEG), 255);
  EXPECT_GT(number_of(client, SOL_RDMA, RDMA_INLINE), 0);
}

TEST_F(RsocketsEdges, SmallQueuesAreMadeAsSmallAsItWorks) {
  for (const int name : {RDMA_SQSIZE, RDMA_RQSIZE}) ASSERT_EQ(set_number(listener, SOL_RDMA, name, 1), 0);
  ASSERT_EQ(set_number(listener, SOL_SOCKET, SO_SNDBUF, 1), 0);
  ASSERT_EQ(set_number(listener, SOL_SOCKET, SO_RCVBUF, 1), 0);
  make_pair();
  EXPECT_EQ(number_of(server, SOL_RDMA, RDMA_SQSIZE), 16);
  EXPECT_EQ(number_of(server, SOL_RDMA, RDMA_RQSIZE), 16);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_SNDBUF), 4096);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_RCVBUF), 4096);
}

TEST_F(RsocketsEdges, TheRouteIsAPathRecord) {
  make_pair();
  ibv_path_data path{};
  socklen_t length = sizeof path - 1;
  EXPECT_EQ(error_of(rgetsockopt(client, SOL_RDMA, RDMA_ROUTE, &path, &length)), EINVAL);
  length = sizeof path;
  EXPECT_EQ(error_of(rgetsockopt(client, SOL_RDMA, RDMA_ROUTE, nullptr, &length)), EFAULT);
  ASSERT_EQ(rgetsockopt(client, SOL_RDMA, RDMA_ROUTE, &path, &length), 0);
  EXPECT_EQ(length, sizeof path);
  EXPECT_EQ(path.flags, static_cast<uint32_t>(IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL));
  EXPECT_EQ(path.path.reversible_numpath, 0x81);
  EXPECT_EQ(path.path.mtu >> 6, 2);
  EXPECT_EQ(number_of(client, IPPROTO_TCP, TCP_MAXSEG), 128 << (path.path.mtu & 0x3f));
  // What was read leads there again.
  const Descriptor again(rsocket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(rsetsockopt(again, SOL_RDMA, RDMA_ROUTE, &path, sizeof path), 0);
  ibv_path_data back{};
  ASSERT_EQ(rgetsockopt(again, SOL_RDMA, RDMA_ROUTE, &back, &length), 0);
  EXPECT_EQ(std::memcmp(&path, &back, sizeof path), 0);
  length = sizeof path - 1;
  EXPECT_EQ(error_of(rgetsockopt(again, SOL_RDMA, RDMA_ROUTE, &back, &length)), EINVAL);
  EXPECT_EQ(rconnect(again, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
}

// Data.

TEST_F(RsocketsEdges, FlagsThatStreamsDoNotHaveAreRefused) {
  make_pair();
  EXPECT_EQ(read_error(server, MSG_OOB), EINVAL);
  EXPECT_EQ(write_error(client, MSG_OOB), EOPNOTSUPP);
  EXPECT_EQ(error_of(rsendto(client, "x", 1, 0, as_sockaddr(address), sizeof address)), EISCONN);
  EXPECT_EQ(rsendto(client, "x", 1, 0, nullptr, 0), 1);
  EXPECT_EQ(rsendto(client, "x", 1, 0, as_sockaddr(address), 0), 1) << "of no length: no address";
}

TEST_F(RsocketsEdges, ReceivesOfNothingDoNotWait) {
  make_pair();
  char c;
  EXPECT_EQ(rrecv(server, &c, 0, 0), 0);
  EXPECT_EQ(rreadv(server, nullptr, 0), 0);
  EXPECT_EQ(rrecv(server, &c, 0, MSG_WAITALL), 0);
}

TEST_F(RsocketsEdges, AReceiveThatMustNotWaitGetsWhatIsThere) {
  make_pair();
  ASSERT_EQ(rsend(client, "abc", 3, 0), 3);
  wait_readable(server);
  char room[8];
  EXPECT_EQ(rrecv(server, room, sizeof room, MSG_DONTWAIT | MSG_WAITALL), 3);
  EXPECT_EQ(read_error(server), EAGAIN);
  EXPECT_EQ(read_error(server, MSG_DONTWAIT | MSG_PEEK), EAGAIN);
  ASSERT_EQ(rfcntl(server, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(read_error(server, 0), EAGAIN);
}

TEST_F(RsocketsEdges, APeekLooksThroughPiecesAndOverTheRingsEnd) {
  ASSERT_EQ(set_number(listener, SOL_SOCKET, SO_RCVBUF, 1), 0);  // 4096 bytes
  make_pair();
  std::string data(2000, 'a');
  for (int round = 0; round < 9; ++round) {
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(round * 31 + static_cast<int>(i));
    // Two messages; the second is noticed by a peek, too, though the first is there.
    ASSERT_EQ(rsend(client, data.data(), 1000, 0), 1000);
    std::string first(500, ' '), second(2500, ' ');
    const iovec pieces[] = {{first.data(), first.size()}, {nullptr, 0}, {second.data(), second.size()}};
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = 3;
    ASSERT_TRUE(await([&] { return rrecvmsg(server, &message, MSG_PEEK) == 1000; }));
    ASSERT_EQ(rsend(client, data.data() + 1000, 1000, 0), 1000);
    ASSERT_TRUE(await([&] { return rrecvmsg(server, &message, MSG_PEEK) == 2000; }));
    EXPECT_EQ(first + second.substr(0, 1500), data);
    std::string got(data.size(), ' ');
    ASSERT_EQ(rrecv(server, got.data(), got.size(), MSG_WAITALL), static_cast<ssize_t>(got.size()));
    EXPECT_EQ(got, data);
  }
}

TEST_F(RsocketsEdges, Peek_WithWaitAllAndFewerBytes_ReturnsThoseOnce) {
  make_pair();
  ASSERT_EQ(rsend(client, "abc", 3, 0), 3);
  wait_readable(server);
  char room[8];
  ASSERT_EQ(rrecv(server, room, sizeof room, MSG_PEEK | MSG_WAITALL), 3);
  EXPECT_EQ(std::string(room, 3), "abc");
  ASSERT_EQ(rrecv(server, room, sizeof room, 0), 3) << "a peek takes nothing";
  EXPECT_EQ(std::string(room, 3), "abc");
}

TEST_F(RsocketsEdges, AWaitForAll_OfMoreThanTheBuffer_GetsAll) {
  make_pair();
  const auto buffer = static_cast<size_t>(number_of(server, SOL_SOCKET, SO_RCVBUF));
  std::string data(4 * buffer + 7, ' '), got(data.size(), ' ');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 31 + i / 251);
  std::thread sender([&] {
    for (size_t sent = 0; sent < data.size();) {
      const ssize_t more = rsend(client, data.data() + sent, data.size() - sent, 0);
      ASSERT_GT(more, 0) << std::strerror(errno);
      sent += static_cast<size_t>(more);
    }
  });
  EXPECT_EQ(rrecv(server, got.data(), got.size(), MSG_WAITALL), static_cast<ssize_t>(got.size()));
  rshutdown(server, SHUT_RDWR);
  sender.join();
  EXPECT_EQ(got, data);
}

TEST_F(RsocketsEdges, PiecesOfMoreThanAreGatheredInline_ArriveWhole) {
  listen_now();
  client = rsocket(AF_INET, SOCK_STREAM, 0);
  const int inline_bytes = 512;
  ASSERT_EQ(rsetsockopt(client, SOL_RDMA, RDMA_INLINE, &inline_bytes, sizeof inline_bytes), 0);
  ASSERT_EQ(rconnect(client, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
  server = raccept(listener, nullptr, nullptr);
  ASSERT_GE(number_of(client, SOL_RDMA, RDMA_INLINE), inline_bytes);
  std::string data(600, ' ');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7);
  for (const size_t length : {2u, 255u, 256u, 257u, 300u, 511u, 512u, 600u}) {
    const iovec pieces[] = {{data.data(), 1}, {data.data() + 1, length - 1}};
    ASSERT_EQ(rwritev(client, pieces, 2), static_cast<ssize_t>(length));
    std::string got(length, ' ');
    ASSERT_EQ(rrecv(server, got.data(), length, MSG_WAITALL), static_cast<ssize_t>(length));
    EXPECT_EQ(got, data.substr(0, length));
  }
}

TEST_F(RsocketsEdges, RouteThatLeadsNowhere_IsAnErrorOfConnecting) {
  listen_now();
  client = rsocket(AF_INET, SOCK_STREAM, 0);
  const ibv_path_data none{};
  ASSERT_EQ(rsetsockopt(client, SOL_RDMA, RDMA_ROUTE, &none, sizeof none), 0);
  EXPECT_EQ(error_of(rconnect(client, as_sockaddr(address), sizeof address)), EINVAL);
}

TEST_F(RsocketsEdges, AWaitForAllEndsWithTheStream) {
  make_pair();
  ASSERT_EQ(rsend(client, "abc", 3, 0), 3);
  ASSERT_EQ(rshutdown(client, SHUT_WR), 0);
  char room[8];
  EXPECT_EQ(rrecv(server, room, sizeof room, MSG_WAITALL), 3);
  EXPECT_EQ(rrecv(server, room, sizeof room, MSG_WAITALL), 0);
}

TEST_F(RsocketsEdges, AWaitForAllEndsWithTheTimeout) {
  make_pair();
  const timeval limit{0, 10'000};
  ASSERT_EQ(rsetsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  ASSERT_EQ(rsend(client, "abc", 3, 0), 3);
  wait_readable(server);
  char room[8];
  EXPECT_EQ(rrecv(server, room, sizeof room, MSG_WAITALL), 3);
  EXPECT_EQ(read_error(server, 0), EAGAIN);
}

TEST_F(RsocketsEdges, ASendWaitsNoLongerThanItsTimeout) {
  make_pair();
  fill(client, server);
  const timeval limit{0, 10'000};
  ASSERT_EQ(rsetsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(write_error(client, 0), EAGAIN);
  EXPECT_EQ(write_error(client, MSG_DONTWAIT), EAGAIN);
}

TEST_F(RsocketsEdges, ListsOfNegativeLengthAreRefused) {
  make_pair();
  char c = 0;
  const iovec piece{&c, 1};
  EXPECT_EQ(error_of(rreadv(server, &piece, -1)), EINVAL);
  EXPECT_EQ(error_of(rwritev(client, &piece, -1)), EINVAL);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(&piece);
  message.msg_iovlen = static_cast<size_t>(INT32_MAX) + 1;
  EXPECT_EQ(error_of(rsendmsg(client, &message, 0)), EMSGSIZE);
  EXPECT_EQ(error_of(rrecvmsg(server, &message, 0)), EMSGSIZE);
}

TEST_F(RsocketsEdges, ThereAreNoControlMessages) {
  make_pair();
  char control[CMSG_SPACE(sizeof(int))] = {};
  char c = 'x';
  iovec piece{&c, 1};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  EXPECT_EQ(error_of(rsendmsg(client, &message, 0)), ENOTSUP);
  message.msg_controllen = 0;
  EXPECT_EQ(rsendmsg(client, &message, 0), 1);
  message.msg_controllen = sizeof control;
  message.msg_flags = -1;
  sockaddr_in from{};
  message.msg_name = &from;
  message.msg_namelen = sizeof from;
  EXPECT_EQ(rrecvmsg(server, &message, 0), 1);
  EXPECT_EQ(message.msg_controllen, 0u);
  EXPECT_EQ(message.msg_flags, 0);
  EXPECT_EQ(message.msg_namelen, sizeof from);
  sockaddr_in local{};
  socklen_t length = sizeof local;
  ASSERT_EQ(rgetsockname(client, as_out(&local), &length), 0);
  EXPECT_EQ(from.sin_port, local.sin_port);
}

TEST_F(RsocketsEdges, ASignalEndsAReceiveThatWaits) {
  make_pair();
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  int error = 0;
  std::atomic<bool> over{false};
  std::thread reader([&] {
    error = read_error(server, 0);
    over = true;
  });
  EXPECT_TRUE(await([&] {
    pthread_kill(reader.native_handle(), SIGUSR1);
    return over.load();
  }));
  if (!over) rshutdown(server, SHUT_RDWR);
  reader.join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(error, EINTR);
}

// Ends, as both sides see them.

TEST_F(RsocketsEdges, ThePeerOfAnEndThatWritesNoMoreStillWrites) {
  make_pair();
  ASSERT_EQ(rshutdown(client, SHUT_WR), 0);
  EXPECT_EQ(write_error(client), EPIPE);
  EXPECT_EQ(read_error(client), EAGAIN) << "reading goes on";
  wait_peer_shut(server);
  EXPECT_EQ(poll_one(server, POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP);
  EXPECT_EQ(poll_one(server, POLLOUT, 0), POLLOUT) << "as asked";
  EXPECT_EQ(poll_one(client, POLLIN | POLLOUT | POLLRDHUP, 0), POLLOUT);
  EXPECT_EQ(read_error(server), 0);
  EXPECT_EQ(write_error(server), 0);
  wait_readable(client);
  EXPECT_EQ(poll_one(client, POLLIN, 0), POLLIN);
  EXPECT_EQ(rshutdown(client, SHUT_WR), 0) << "once more";
}

TEST_F(RsocketsEdges, AnEndThatReadsNoMoreStillWrites) {
  make_pair();
  ASSERT_EQ(rshutdown(client, SHUT_RD), 0);
  EXPECT_EQ(read_error(client), 0);
  EXPECT_EQ(poll_one(client, POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP);
  EXPECT_EQ(write_error(client), 0);
  wait_readable(server);
  EXPECT_EQ(poll_one(server, POLLIN | POLLRDHUP, 0), POLLIN) << "the peer does not know of it";
  ASSERT_EQ(rshutdown(client, SHUT_WR), 0);
  EXPECT_NE(poll_one(client, 0, kSoonMs) & POLLHUP, 0) << "both directions";
}

TEST_F(RsocketsEdges, BothEndsShutDownAtOnce) {
  make_pair();
  for (const int fd : {client, server}) ASSERT_EQ(rshutdown(fd, SHUT_WR), 0);
  for (const int fd : {client, server}) {
    EXPECT_EQ(poll_one(fd, 0, kSoonMs), POLLHUP);
    EXPECT_EQ(poll_one(fd, POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
    EXPECT_EQ(read_error(fd), 0);
    EXPECT_EQ(write_error(fd), EPIPE);
    EXPECT_EQ(number_of(fd, SOL_SOCKET, SO_ERROR), 0);
    EXPECT_EQ(rshutdown(fd, SHUT_RDWR), 0);
  }
}

TEST_F(RsocketsEdges, ThePeerOfAClosedEndReadsTheRestThenItsEnd) {
  make_pair();
  ASSERT_EQ(rsend(client, "rest", 4, 0), 4);
  rclose(client);
  client = -1;
  EXPECT_EQ(poll_one(server, 0, kSoonMs), POLLHUP);
  EXPECT_EQ(poll_one(server, POLLIN, 0), POLLIN) << "the end is told when all is read";
  EXPECT_EQ(poll_one(server, POLLOUT, 0), POLLOUT | POLLHUP);
  EXPECT_EQ(read_all(server), "rest");
  EXPECT_EQ(poll_one(server, POLLIN, 0), POLLIN | POLLHUP);
  EXPECT_EQ(write_error(server), EPIPE);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_ERROR), 0) << "in good order";
}

TEST_F(RsocketsEdges, ASendThatWaitsIsWokenByItsShutdown) {
  make_pair();
  fill(client, server);
  int error = 0;
  std::atomic<bool> waits{false};
  std::thread writer([&] {
    waits = true;
    error = write_error(client, 0);
  });
  ASSERT_TRUE(await([&] { return waits.load(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(rshutdown(client, SHUT_WR), 0);
  writer.join();
  EXPECT_EQ(error, EPIPE);
  EXPECT_EQ(poll_one(client, POLLOUT, 0), POLLOUT) << "a write fails without waiting";
}

TEST_F(RsocketsEdges, ASendThatWaitsIsWokenByThePeersClose) {
  make_pair();
  fill(client, server);
  int error = 0;
  std::atomic<bool> waits{false};
  std::thread writer([&] {
    waits = true;
    error = write_error(client, 0);
  });
  ASSERT_TRUE(await([&] { return waits.load(); }));
  rclose(server);
  server = -1;
  writer.join();
  EXPECT_EQ(error, EPIPE);
}

TEST_F(RsocketsEdges, APollThatWaitsIsWokenByTheOtherThreadsAndThePeersCalls) {
  make_pair();
  const auto woken_by = [&](short events, auto call) {
    std::atomic<bool> waits{false};
    int seen = 0;
    std::thread waiter([&] {
      waits = true;
      seen = poll_one(server, events, kSoonMs);
    });
    EXPECT_TRUE(await([&] { return waits.load(); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    call();
    waiter.join();
    return seen;
  };
  EXPECT_EQ(woken_by(POLLIN, [&] { EXPECT_EQ(rsend(client, "x", 1, 0), 1); }), POLLIN);
  EXPECT_EQ(read_error(server), 0);
  EXPECT_EQ(woken_by(POLLRDHUP, [&] { EXPECT_EQ(rshutdown(client, SHUT_WR), 0); }), POLLRDHUP);
  EXPECT_EQ(woken_by(0, [&] { EXPECT_EQ(rshutdown(server, SHUT_WR), 0); }), POLLHUP);
}

TEST_F(RsocketsEdges, ReadersAndPollersOfOneStreamAreAllWoken) {
  make_pair();
  constexpr int kRounds = 200;
  constexpr int kPollers = 2;
  std::atomic<int> round{0};
  std::atomic<int> seen{0};
  std::vector<std::thread> pollers;
  for (int i = 0; i < kPollers; ++i) {
    pollers.emplace_back([&] {
      for (int mine = 0; mine < kRounds; ++mine) {
        EXPECT_EQ(poll_one(server, POLLIN, kSoonMs), POLLIN);
        ++seen;
        while (round <= mine) std::this_thread::yield();
      }
    });
  }
  for (int i = 0; i < kRounds; ++i) {
    ASSERT_EQ(rsend(client, "x", 1, 0), 1);
    ASSERT_TRUE(await([&] { return seen.load() == (i + 1) * kPollers; })) << i;
    ASSERT_EQ(read_error(server), 0);
    ++round;
  }
  for (std::thread& poller : pollers) poller.join();
}

TEST_F(RsocketsEdges, APingPongOfSleepersMissesNoWakeUp) {
  make_pair();
  constexpr int kRounds = 2000;
  std::thread echo([&] {
    char c;
    for (int i = 0; i < kRounds; ++i) {
      ASSERT_EQ(rrecv(server, &c, 1, 0), 1);
      ASSERT_EQ(rsend(server, &c, 1, 0), 1);
    }
  });
  const timeval limit{10, 0};
  ASSERT_EQ(rsetsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  char c = 0;
  for (int i = 0; i < kRounds; ++i) {
    ASSERT_EQ(rsend(client, "x", 1, 0), 1);
    ASSERT_EQ(rrecv(client, &c, 1, 0), 1) << "round " << i;
  }
  echo.join();
}

// select and poll.

TEST_F(RsocketsEdges, SelectRefusesWhatIsNoSet) {
  fd_set set;
  FD_ZERO(&set);
  timeval now{};
  EXPECT_EQ(error_of(rselect(-1, &set, nullptr, nullptr, &now)), EINVAL);
  EXPECT_EQ(error_of(rselect(FD_SETSIZE + 1, &set, nullptr, nullptr, &now)), EINVAL);
  FD_SET(FD_SETSIZE - 1, &set);
  EXPECT_EQ(error_of(rselect(FD_SETSIZE, &set, nullptr, nullptr, &now)), EBADF);
  EXPECT_EQ(rselect(0, nullptr, nullptr, nullptr, &now), 0);
}

TEST_F(RsocketsEdges, SelectHasEndsAsReadable) {
  make_pair();
  rclose(client);
  client = -1;
  ASSERT_EQ(poll_one(server, 0, kSoonMs), POLLHUP);
  fd_set read, write, except;
  for (fd_set* set : {&read, &write, &except}) {
    FD_ZERO(set);
    FD_SET(server, set);
  }
  EXPECT_EQ(rselect(server + 1, &read, &write, &except, nullptr), 2);
  EXPECT_TRUE(FD_ISSET(server, &read));
  EXPECT_TRUE(FD_ISSET(server, &write));
  EXPECT_FALSE(FD_ISSET(server, &except));
  FD_SET(server, &read);
  timeval now{};
  EXPECT_EQ(rselect(server, &read, nullptr, nullptr, &now), 0) << "below the number only";
}

TEST_F(RsocketsEdges, PollHasSeveralPlainDescriptors) {
  make_pair();
  int first[2], second[2];
  ASSERT_EQ(pipe(first) | pipe(second), 0);
  for (const int wait_ms : {0, kSoonMs}) {  // by looking, and by sleeping
    pollfd entries[] = {{first[0], POLLIN, 0}, {server, POLLIN, 0}, {second[0], POLLIN, 0}, {second[1], POLLOUT, 0}};
    EXPECT_EQ(write(second[1], "x", 1), 1);
    EXPECT_EQ(rpoll(entries, 4, wait_ms), 2);
    EXPECT_EQ(entries[0].revents, 0);
    EXPECT_EQ(entries[1].revents, 0);
    EXPECT_EQ(entries[2].revents, POLLIN);
    EXPECT_EQ(entries[3].revents, POLLOUT);
    EXPECT_EQ(write(first[1], "x", 1), 1);
    EXPECT_EQ(rpoll(entries, 4, wait_ms), 3);
    EXPECT_EQ(entries[0].revents, POLLIN);
    char c;
    EXPECT_EQ(read(first[0], &c, 1), 1);
  }
  for (const int fd : {first[0], first[1], second[0], second[1]}) close(fd);
}

TEST_F(RsocketsEdges, PollReportsADescriptorThatIsNone) {
  pollfd entries[] = {{kNoDescriptor, POLLIN, 0}, {listener, POLLIN, 0}, {-1, POLLIN, 7}};
  listen_now();
  EXPECT_EQ(rpoll(entries, 3, 0), 1);
  EXPECT_EQ(entries[0].revents, POLLNVAL);
  EXPECT_EQ(entries[1].revents, 0);
  EXPECT_EQ(entries[2].revents, 0);
}

// riomap() and datagrams' calls on streams, and the other way round.

TEST(RsocketsSocket, DatagramsHaveNoMappedBuffersAndNoListeners) {
  const Descriptor fd(rsocket(AF_INET, SOCK_DGRAM, 0));
  char c = 0;
  EXPECT_EQ(error_of(riomap(fd, &c, 1, PROT_WRITE, 0, 0)), EINVAL);
  EXPECT_EQ(error_of(riounmap(fd, &c, 1)), EINVAL);
  EXPECT_EQ(error_of(static_cast<ssize_t>(riowrite(fd, &c, 1, 0, 0))), ENOTCONN);
  EXPECT_EQ(error_of(rlisten(fd, 1)), EOPNOTSUPP);
  EXPECT_EQ(error_of(raccept(fd, nullptr, nullptr)), EOPNOTSUPP);
}

TEST_F(RsocketsEdges, ConnectingAgainIsRefusedInEachState) {
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

TEST_F(RsocketsEdges, Connect_ToAnAddressOfAnotherFamily_LeavesTheRsocketAsItWas) {
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

TEST_F(RsocketsEdges, AConnectThatNobodyAnswersIsRefused) {
  const Descriptor fd(rsocket(AF_INET, SOCK_STREAM, 0));
  rclose(listener);
  listener = -1;
  EXPECT_EQ(error_of(rconnect(fd, as_sockaddr(address), sizeof address)), ECONNREFUSED);
  EXPECT_EQ(error_of(rconnect(fd, as_sockaddr(address), sizeof address)), ECONNABORTED);
  EXPECT_EQ(read_error(fd), 0);
  EXPECT_EQ(write_error(fd), EPIPE);
}
