// SPDX-License-Identifier: Apache-2.0
// Connecting, accepting, waiting, datagrams.
#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>
#include <sys/select.h>

#include <atomic>

#include "api_support.h"

using namespace nupa::rsockets_test;

TEST_F(RsocketsApi, Connect_WithoutAListener_IsRefused) {
  rclose(listener);
  listener = -1;
  EXPECT_EQ(connect_one(), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
}

TEST_F(RsocketsApi, Connect_BeforeAccept_Succeeds) {
  listen_now();
  std::vector<int> clients;
  for (int i = 0; i < 10; ++i) {
    clients.push_back(connect_one());
    ASSERT_GE(clients.back(), 0) << i << " " << std::strerror(errno);
    ASSERT_EQ(rsend(clients.back(), &i, sizeof i, 0), static_cast<ssize_t>(sizeof i));
  }
  for (int i = 0; i < 10; ++i) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    const int fd = raccept(listener, reinterpret_cast<sockaddr*>(&peer), &length);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(peer.sin_family, AF_INET);
    int number = -1;
    EXPECT_EQ(rrecv(fd, &number, sizeof number, MSG_WAITALL), static_cast<ssize_t>(sizeof number));
    EXPECT_EQ(number, i);
    rclose(fd);
  }
  for (const int fd : clients) rclose(fd);
}

TEST_F(RsocketsApi, Accept_NonBlocking_FailsWithEagain) {
  listen_now();
  ASSERT_EQ(rfcntl(listener, F_SETFL, O_NONBLOCK), 0);
  EXPECT_NE(rfcntl(listener, F_GETFL, 0) & O_NONBLOCK, 0);
  EXPECT_EQ(raccept(listener, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  client = connect_one();
  ASSERT_GE(client, 0);
  EXPECT_EQ(poll_one(listener, POLLIN, 1000), POLLIN);
  server = raccept(listener, nullptr, nullptr);
  EXPECT_GE(server, 0);
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
}

TEST_F(RsocketsApi, Connect_NonBlocking_CompletesInPoll) {
  for (const bool listens : {false, true}) {
    if (listens) {
      SetUp();
      listen_now();
    } else {
      rclose(listener);
    }
    const int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(rfcntl(fd, F_SETFL, O_NONBLOCK), 0);
    const int rc = rconnect(fd, as_sockaddr(address), sizeof address);
    if (rc != 0) {
      ASSERT_TRUE(errno == EINPROGRESS || (!listens && errno == ECONNREFUSED)) << std::strerror(errno);
    }
    int error = rc == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      EXPECT_NE(poll_one(fd, POLLOUT, 5000) & POLLOUT, 0);
      socklen_t length = sizeof error;
      ASSERT_EQ(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    }
    EXPECT_EQ(error, listens ? 0 : ECONNREFUSED);
    rclose(fd);
  }
}

namespace {

/// Of this host as one connects to it; with port 0 all of its addresses and any port.
sockaddr_ib gid_of_this_host(uint16_t port) {
  sockaddr_ib address{};
  address.sib_family = AF_IB;
  address.sib_pkey = htons(0xffff);
  address.sib_sid = htobe64(RDMA_IB_IP_PS_TCP + port);
  address.sib_sid_mask = htobe64(RDMA_IB_IP_PS_MASK);
  if (port == 0) return address;
  address.sib_sid_mask = ~uint64_t{0};
  address.sib_addr.sib_addr16[5] = 0xffff;
  address.sib_addr.sib_addr32[3] = htonl(INADDR_LOOPBACK);
  return address;
}

/// A client of the family of `to`.
template <class Address>
int connected(const Address& to) {
  const auto* address = reinterpret_cast<const sockaddr*>(&to);
  const int fd = rsocket(address->sa_family, SOCK_STREAM, 0);
  EXPECT_EQ(rconnect(fd, address, sizeof to), 0) << std::strerror(errno);
  return fd;
}

/// Returns the port that a listener at any address has got.
template <class Address>
uint16_t bound(int listener, Address any) {
  auto* address = reinterpret_cast<sockaddr*>(&any);
  EXPECT_EQ(rbind(listener, address, sizeof any), 0) << std::strerror(errno);
  socklen_t length = sizeof any;
  EXPECT_EQ(rgetsockname(listener, address, &length), 0);
  if constexpr (std::is_same_v<Address, sockaddr_ib>) {
    EXPECT_EQ(be64toh(any.sib_sid_mask), ~uint64_t{0});
    return static_cast<uint16_t>(be64toh(any.sib_sid));
  } else {
    return ntohs(any.sin_port);
  }
}

}  // namespace

TEST_F(RsocketsApi, Connect_ByGidOrIpAddress_ReachesListenersOfEitherFamily) {
  for (const int family : {AF_IB, AF_INET}) {
    rclose(listener);
    listener = rsocket(family, SOCK_STREAM, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    const uint16_t port = family == AF_IB ? bound(listener, gid_of_this_host(0)) : bound(listener, any);
    ASSERT_NE(port, 0);
    listen_now();
    for (const bool by_gid : {true, false}) {
      client = by_gid ? connected(gid_of_this_host(port)) : connected(loopback(port));
      sockaddr_storage peer{};
      socklen_t length = sizeof peer;
      server = raccept(listener, reinterpret_cast<sockaddr*>(&peer), &length);
      ASSERT_GE(server, 0) << std::strerror(errno);
      EXPECT_EQ(peer.ss_family, family);
      const std::string text = "by either name";
      EXPECT_EQ(rsend(client, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
      rclose(client);
      EXPECT_EQ(read_all(server), text);
      rclose(server);
      client = server = -1;
    }
  }
}

TEST_F(RsocketsApi, Connect_Twice_IsRefused) {
  make_pair();
  EXPECT_EQ(rconnect(client, as_sockaddr(address), sizeof address), -1);
  EXPECT_EQ(errno, EISCONN);
  EXPECT_EQ(rconnect(listener, as_sockaddr(address), sizeof address), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(RsocketsApi, Accept_ListenerIsClosed_Returns) {
  listen_now();
  int result = 0;
  std::atomic<pid_t> thread{0};
  std::thread waiter([&, fd = listener] {
    thread = gettid();
    result = raccept(fd, nullptr, nullptr);
  });
  EXPECT_TRUE(await([&] { return thread != 0; }) && await_sleep(thread));
  rclose(listener);
  listener = -1;
  waiter.join();
  EXPECT_EQ(result, -1);
}

TEST_F(RsocketsApi, Poll_BothKindsOfDescriptors_ReportsBoth) {
  make_pair();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  pollfd fds[] = {{server, POLLIN | POLLOUT, 0}, {ends[0], POLLIN, 0}, {-1, POLLIN, 0}};
  EXPECT_EQ(rpoll(fds, 3, 0), 1);
  EXPECT_EQ(fds[0].revents, POLLOUT);
  fds[0].events = POLLIN;
  EXPECT_EQ(rpoll(fds, 3, 20), 0);
  const pid_t poller = gettid();
  std::atomic<bool> has_read{false};
  std::thread late([&] {
    EXPECT_TRUE(await_sleep(poller));
    EXPECT_EQ(write(ends[1], "x", 1), 1);
    EXPECT_TRUE(await([&] { return has_read.load(); }) && await_sleep(poller));
    rsend(client, "y", 1, 0);
  });
  EXPECT_EQ(rpoll(fds, 3, kSoonMs), 1);
  EXPECT_EQ(fds[1].revents, POLLIN);
  char c;
  EXPECT_EQ(read(ends[0], &c, 1), 1);
  has_read = true;
  EXPECT_EQ(rpoll(fds, 3, kSoonMs), 1);
  EXPECT_EQ(fds[0].revents, POLLIN);
  late.join();
  close(ends[0]);
  close(ends[1]);
}

TEST_F(RsocketsApi, Poll_FullConnection_WaitsForRoom) {
  make_pair();
  ASSERT_EQ(rfcntl(client, F_SETFL, O_NONBLOCK), 0);
  // A send may find its own buffers full that the adapter has not emptied yet; only the peer's buffer stays full.
  const auto capacity = static_cast<size_t>(number_of(server, SOL_SOCKET, SO_RCVBUF));
  std::vector<char> data(capacity + 1);
  size_t sent = 0;
  while (sent < capacity) {
    ASSERT_EQ(poll_one(client, POLLOUT, kSoonMs), POLLOUT);
    const ssize_t count = rsend(client, data.data(), data.size() - sent, 0);
    ASSERT_TRUE(count > 0 || errno == EAGAIN) << std::strerror(errno);
    if (count > 0) sent += static_cast<size_t>(count);
  }
  EXPECT_EQ(sent, capacity) << "no more than the peer has room for";
  EXPECT_EQ(rsend(client, data.data(), 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(poll_one(client, POLLOUT, 0), 0);
  std::thread reader([&] {
    std::vector<char> room(sent);
    EXPECT_EQ(rrecv(server, room.data(), sent, MSG_WAITALL), static_cast<ssize_t>(sent));
  });
  EXPECT_EQ(poll_one(client, POLLOUT, kSoonMs), POLLOUT);
  reader.join();
}

TEST_F(RsocketsApi, Select_BothKindsOfDescriptors_ReportsBoth) {
  make_pair();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto select_now = [&](int64_t ms) {
    fd_set read;
    fd_set write;
    FD_ZERO(&read);
    FD_ZERO(&write);
    FD_SET(server, &read);
    FD_SET(ends[0], &read);
    FD_SET(client, &write);
    timeval limit{0, ms * 1000};
    const int count = rselect(std::max({server, client, ends[0]}) + 1, &read, &write, nullptr, &limit);
    return std::to_string(count) + (FD_ISSET(server, &read) ? " server" : "") +
           (FD_ISSET(ends[0], &read) ? " pipe" : "") + (FD_ISSET(client, &write) ? " client" : "");
  };
  EXPECT_EQ(select_now(10), "1 client");
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  ASSERT_EQ(rsend(client, "x", 1, 0), 1);
  EXPECT_EQ(poll_one(server, POLLIN, kSoonMs), POLLIN);
  EXPECT_EQ(select_now(10), "3 server pipe client");
  close(ends[0]);
  close(ends[1]);
}

TEST_F(RsocketsApi, Poll_SeveralThreadsOnOneRsocket_AllReturn) {
  make_pair();
  constexpr size_t kPollers = 3;
  std::atomic<pid_t> numbers[kPollers + 1] = {};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kPollers; ++i) {
    threads.emplace_back([&, i] {
      numbers[i] = gettid();
      EXPECT_EQ(poll_one(server, POLLIN, kSoonMs), POLLIN);
    });
  }
  char c = 0;
  threads.emplace_back([&] {
    numbers[kPollers] = gettid();
    EXPECT_EQ(rrecv(server, &c, 1, MSG_PEEK), 1);
  });
  for (const auto& number : numbers) EXPECT_TRUE(await([&] { return number != 0; }) && await_sleep(number));
  ASSERT_EQ(rsend(client, "x", 1, 0), 1);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(c, 'x');
}

TEST(RsocketsApiPlain, Calls_OnOtherDescriptors_AreRefused) {
  EXPECT_EQ(rsocket(AF_UNIX, SOCK_STREAM, 0), -1);
  EXPECT_EQ(errno, ENOTSUP);
  EXPECT_EQ(rsocket(AF_INET, SOCK_RAW, 0), -1);
  EXPECT_EQ(rclose(12345), -1);
  EXPECT_EQ(errno, EBADF);
  char c;
  EXPECT_EQ(rrecv(12345, &c, 1, 0), -1);
  EXPECT_EQ(errno, EBADF);
  const int fd = rsocket(AF_INET6, SOCK_STREAM, IPPROTO_TCP);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(rrecv(fd, &c, 1, 0), -1);
  EXPECT_EQ(errno, ENOTCONN);
  EXPECT_EQ(rsend(fd, &c, 1, 0), -1);
  EXPECT_EQ(errno, ENOTCONN);
  EXPECT_EQ(rclose(fd), 0);
}

TEST(RsocketsApiPlain, Datagrams_BetweenTwoRsockets_Arrive) {
  const int server = rsocket(AF_INET, SOCK_DGRAM, 0);
  const int client = rsocket(AF_INET, SOCK_DGRAM, 0);
  ASSERT_GE(server, 0);
  ASSERT_GE(client, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  ASSERT_EQ(rbind(server, as_sockaddr(address), sizeof address), 0);
  ASSERT_EQ(rgetsockname(server, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ASSERT_EQ(rconnect(client, as_sockaddr(address), sizeof address), 0);
  for (int i = 0; i < 200; ++i) {  // the first over UDP, the rest between queue pairs
    std::string text = "datagram " + std::to_string(i) + std::string(static_cast<size_t>(i) * 5, '.');
    ASSERT_EQ(rsend(client, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    char buffer[2048];
    sockaddr_in from{};
    length = sizeof from;
    pollfd entry{server, POLLIN, 0};
    ASSERT_EQ(rpoll(&entry, 1, 5000), 1) << i;
    ssize_t count = rrecvfrom(server, buffer, sizeof buffer, 0, reinterpret_cast<sockaddr*>(&from), &length);
    ASSERT_EQ(std::string(buffer, static_cast<size_t>(std::max<ssize_t>(count, 0))), text);
    ASSERT_EQ(rsendto(server, buffer, static_cast<size_t>(count), 0, as_sockaddr(from), length), count);
    entry.fd = client;
    ASSERT_EQ(rpoll(&entry, 1, 5000), 1) << i;
    count = rrecv(client, buffer, 4, 0);  // the rest is cut off
    ASSERT_EQ(count, 4);
    ASSERT_EQ(std::string(buffer, 4), "data");
  }
  char c;
  EXPECT_EQ(rrecv(client, &c, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  rclose(client);
  rclose(server);
}
