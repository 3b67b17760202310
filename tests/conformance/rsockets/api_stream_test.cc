// SPDX-License-Identifier: Apache-2.0
// Streams: data, ends, options, mapped buffers.
#include <netinet/tcp.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <random>

#include "api_support.h"

using namespace nupa::rsockets_test;
using std::chrono::milliseconds;

namespace {

void send_all(int fd, const std::string& data, size_t most) {
  std::mt19937 random(5);
  size_t sent = 0;
  while (sent < data.size()) {
    const size_t step = std::min<size_t>(1 + random() % most, data.size() - sent);
    const ssize_t count = rsend(fd, data.data() + sent, step, 0);
    ASSERT_GT(count, 0) << std::strerror(errno);
    sent += static_cast<size_t>(count);
  }
}

std::string random_bytes(size_t length) {
  std::mt19937 random(9);
  std::string data(length, ' ');
  for (char& c : data) c = static_cast<char>(random());
  return data;
}

}  // namespace

TEST_F(RsocketsApi, Send_InParts_ArrivesInOrder) {
  make_pair();
  for (const size_t most : {1ul, 100ul, 5000ul, 300000ul}) {
    const std::string data = random_bytes(most == 1 ? 3000 : 2'000'000);
    std::string got;
    std::thread reader([&] {
      std::mt19937 random(6);
      std::vector<char> buffer(400000);
      while (got.size() < data.size()) {
        const ssize_t count = rrecv(server, buffer.data(), 1 + random() % (2 * most), 0);
        ASSERT_GT(count, 0) << std::strerror(errno);
        got.append(buffer.data(), static_cast<size_t>(count));
      }
    });
    send_all(client, data, most);
    reader.join();
    ASSERT_TRUE(got == data) << most;
  }
}

TEST_F(RsocketsApi, Send_InBothDirectionsAtOnce_ArrivesWhole) {
  make_pair();
  const std::string data = random_bytes(3'000'000);
  const auto read_from = [&](int fd, std::string* got) {
    char buffer[10000];
    while (got->size() < data.size()) {
      const ssize_t count = rread(fd, buffer, sizeof buffer);
      ASSERT_GT(count, 0) << std::strerror(errno);
      got->append(buffer, static_cast<size_t>(count));
    }
  };
  std::string one;
  std::string two;
  std::thread a([&] { read_from(server, &one); });
  std::thread b([&] { read_from(client, &two); });
  std::thread c([&] { send_all(server, data, 70000); });
  send_all(client, data, 70000);
  a.join();
  b.join();
  c.join();
  EXPECT_TRUE(one == data);
  EXPECT_TRUE(two == data);
}

TEST_F(RsocketsApi, Send_SmallestBuffersAndQueues_ArrivesWhole) {
  const int bytes = 1;
  const int requests = 1;
  const int no_inline = 0;
  for (const int name : {SO_SNDBUF, SO_RCVBUF}) rsetsockopt(listener, SOL_SOCKET, name, &bytes, sizeof bytes);
  for (const int name : {RDMA_SQSIZE, RDMA_RQSIZE}) {
    ASSERT_EQ(rsetsockopt(listener, SOL_RDMA, name, &requests, sizeof requests), 0);
  }
  ASSERT_EQ(rsetsockopt(listener, SOL_RDMA, RDMA_INLINE, &no_inline, sizeof no_inline), 0);
  make_pair();
  const std::string data = random_bytes(200'000);
  std::string got;
  std::thread reader([&] {
    char buffer[1000];
    while (got.size() < data.size()) {
      const ssize_t count = rrecv(client, buffer, sizeof buffer, 0);
      ASSERT_GT(count, 0);
      got.append(buffer, static_cast<size_t>(count));
    }
  });
  send_all(server, data, 3000);
  reader.join();
  EXPECT_TRUE(got == data);
}

TEST_F(RsocketsApi, PeekAndWaitAll_KeepDataAndWaitForAll) {
  make_pair();
  ASSERT_EQ(rsend(client, "abc", 3, 0), 3);
  char buffer[8] = {};
  ASSERT_EQ(rrecv(server, buffer, 8, MSG_PEEK), 3);
  ASSERT_EQ(rrecv(server, buffer, 2, MSG_PEEK), 2);
  const pid_t reader = gettid();
  std::thread late([&] {
    EXPECT_TRUE(await_sleep(reader));
    rsend(client, "defgh", 5, 0);
  });
  ASSERT_EQ(rrecv(server, buffer, 8, MSG_WAITALL), 8);
  EXPECT_EQ(std::string(buffer, 8), "abcdefgh");
  late.join();
  EXPECT_EQ(rrecv(server, buffer, 8, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(RsocketsApi, Lists_AreGatheredAndScattered) {
  make_pair();
  char a[] = "ab";
  char b[] = "cdefg";
  const iovec out[] = {{a, 2}, {nullptr, 0}, {b, 5}};
  ASSERT_EQ(rwritev(client, out, 3), 7);
  char x[3];
  char y[4];
  const iovec in[] = {{x, 3}, {y, 4}};
  ASSERT_EQ(rreadv(server, in, 2), 7);
  EXPECT_EQ(std::string(x, 3) + std::string(y, 4), "abcdefg");
  msghdr message{};
  iovec many[] = {{a, 1}, {b, 1}};
  message.msg_iov = many;
  message.msg_iovlen = 2;
  ASSERT_EQ(rsendmsg(client, &message, 0), 2);
  iovec room[] = {{x, 1}, {y, 1}};
  message.msg_iov = room;
  ASSERT_EQ(rrecvmsg(server, &message, 0), 2);
  EXPECT_EQ(x[0], 'a');
  EXPECT_EQ(y[0], 'c');
}

TEST_F(RsocketsApi, ShutdownForWriting_ThePeerReadsTheDataThenTheEnd) {
  make_pair();
  ASSERT_EQ(rsend(client, "request", 7, 0), 7);
  ASSERT_EQ(rshutdown(client, SHUT_WR), 0);
  EXPECT_EQ(rsend(client, "x", 1, 0), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(read_all(server), "request");
  ASSERT_EQ(rsend(server, "answer", 6, 0), 6);
  ASSERT_EQ(rshutdown(server, SHUT_WR), 0);
  EXPECT_EQ(read_all(client), "answer");
  EXPECT_EQ(read_all(client), "");
}

TEST_F(RsocketsApi, Close_AfterASend_ThePeerReadsTheData) {
  make_pair();
  const std::string data = random_bytes(100'000);  // less than the buffers, so nobody has to read
  ASSERT_EQ(rsend(client, data.data(), data.size(), 0), static_cast<ssize_t>(data.size()));
  ASSERT_EQ(rclose(client), 0);
  client = -1;
  EXPECT_TRUE(read_all(server) == data);
  EXPECT_NE(poll_one(server, POLLIN, 0) & POLLHUP, 0);
  EXPECT_EQ(rsend(server, "x", 1, 0), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST_F(RsocketsApi, Receive_WaitsAndThePeerShutsDownOrCloses_Returns) {
  make_pair();
  for (const bool by_close : {false, true}) {
    if (by_close) {
      rclose(client);
      rclose(server);
      client = connect_one();
      server = raccept(listener, nullptr, nullptr);
    }
    ssize_t result = 1;
    std::atomic<pid_t> thread{0};
    std::thread reader([&, fd = server] {
      thread = gettid();
      char c;
      result = rrecv(fd, &c, 1, 0);
    });
    EXPECT_TRUE(await([&] { return thread != 0; }) && await_sleep(thread));
    if (by_close) {
      rclose(server);
      server = -1;
    } else {
      rshutdown(server, SHUT_RDWR);
    }
    reader.join();
    EXPECT_EQ(result, 0);
  }
}

TEST_F(RsocketsApi, Receive_Timeout_FailsWithEagain) {
  make_pair();
  const timeval limit{0, 50'000};
  ASSERT_EQ(rsetsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  const auto begin = std::chrono::steady_clock::now();
  char c;
  EXPECT_EQ(rrecv(server, &c, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(49));
}

TEST_F(RsocketsApi, Names_OfBothEnds_AreTheirAddresses) {
  make_pair();
  sockaddr_in local{};
  sockaddr_in peer{};
  socklen_t length = sizeof local;
  ASSERT_EQ(rgetsockname(client, reinterpret_cast<sockaddr*>(&local), &length), 0);
  EXPECT_EQ(length, sizeof local);
  ASSERT_EQ(rgetpeername(server, reinterpret_cast<sockaddr*>(&peer), &length), 0);
  EXPECT_EQ(local.sin_port, peer.sin_port);
  EXPECT_EQ(local.sin_addr.s_addr, peer.sin_addr.s_addr);
  ASSERT_EQ(rgetpeername(client, reinterpret_cast<sockaddr*>(&peer), &length), 0);
  EXPECT_EQ(peer.sin_port, address.sin_port);
}

TEST_F(RsocketsApi, Options_ReturnTheValueThatWasSet) {
  const auto check = [&](int level, int name, int value, int expected) {
    ASSERT_EQ(rsetsockopt(listener, level, name, &value, sizeof value), 0) << level << " " << name;
    int got = -1;
    socklen_t length = sizeof got;
    ASSERT_EQ(rgetsockopt(listener, level, name, &got, &length), 0);
    EXPECT_EQ(got, expected) << level << " " << name;
    EXPECT_EQ(length, sizeof got);
  };
  check(SOL_SOCKET, SO_RCVBUF, 50000, 100000);
  check(SOL_SOCKET, SO_SNDBUF, 50000, 100000);
  check(SOL_SOCKET, SO_KEEPALIVE, 1, 1);
  check(SOL_SOCKET, SO_OOBINLINE, 1, 1);
  check(IPPROTO_TCP, TCP_NODELAY, 1, 1);
  check(IPPROTO_TCP, TCP_KEEPIDLE, 5, 5);
  check(SOL_RDMA, RDMA_SQSIZE, 100, 100);
  check(SOL_RDMA, RDMA_RQSIZE, 100, 100);
  check(SOL_RDMA, RDMA_INLINE, 32, 32);
  check(SOL_RDMA, RDMA_IOMAPSIZE, 300, 256);  // large numbers are rounded to what the request can say
  int value = 0;
  socklen_t length = sizeof value;
  EXPECT_EQ(rgetsockopt(listener, SOL_SOCKET, SO_TYPE, &value, &length), 0);
  EXPECT_EQ(value, SOCK_STREAM);
  EXPECT_EQ(rsetsockopt(listener, SOL_SOCKET, 12345, &value, sizeof value), -1);
  EXPECT_EQ(rsetsockopt(-1, SOL_SOCKET, SO_RCVBUF, &value, sizeof value), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST_F(RsocketsApi, Keepalives_ReachNoReader) {
  make_pair();
  const int second = 1;
  ASSERT_EQ(rsetsockopt(client, IPPROTO_TCP, TCP_KEEPIDLE, &second, sizeof second), 0);
  ASSERT_EQ(rsetsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &second, sizeof second), 0);
  EXPECT_EQ(poll_one(server, POLLIN, 1300), 0);
  ASSERT_EQ(rsend(client, "x", 1, 0), 1);
  char c;
  EXPECT_EQ(rrecv(server, &c, 1, 0), 1);
}

TEST_F(RsocketsApi, IomapWrite_ReceiverIsIdle_WritesItsMemory) {
  const int mappings = 4;
  ASSERT_EQ(rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &mappings, sizeof mappings), 0);
  listen_now();
  client = rsocket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(rsetsockopt(client, SOL_RDMA, RDMA_IOMAPSIZE, &mappings, sizeof mappings), 0);
  ASSERT_EQ(rconnect(client, as_sockaddr(address), sizeof address), 0);
  server = raccept(listener, nullptr, nullptr);
  std::vector<char> target(100'000);
  ASSERT_EQ(riomap(server, target.data(), target.size(), PROT_WRITE, 0, 1000), 1000);
  ASSERT_EQ(rsend(server, "go", 2, 0), 2);
  char buffer[4];
  ASSERT_EQ(rrecv(client, buffer, 2, MSG_WAITALL), 2);
  const std::string data = random_bytes(target.size() - 10);
  ASSERT_EQ(riowrite(client, data.data(), data.size(), 1010, 0), data.size());
  ASSERT_EQ(rsend(client, "x", 1, 0), 1);
  ASSERT_EQ(rrecv(server, buffer, 1, 0), 1);
  EXPECT_EQ(std::memcmp(target.data() + 10, data.data(), data.size()), 0);
  EXPECT_EQ(static_cast<ssize_t>(riowrite(client, "x", 1, 5, 0)), -1);
  EXPECT_EQ(riounmap(server, target.data(), target.size()), 0);
  EXPECT_EQ(riounmap(server, target.data(), target.size()), -1);
  EXPECT_EQ(errno, EINVAL);
}
