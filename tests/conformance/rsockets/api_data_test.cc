// SPDX-License-Identifier: Apache-2.0
/// Unusual sends and receives on a stream: flags, lengths, timeouts, signals.
#include <pthread.h>

#include <atomic>
#include <csignal>

#include "api_edges.h"
#include "api_support.h"

using namespace nupa::rsockets_test;

TEST_F(RsocketsEdges, SendAndReceive_UnsupportedFlags_AreRefused) {
  make_pair();
  EXPECT_EQ(read_error(server, MSG_OOB), EINVAL);
  EXPECT_EQ(write_error(client, MSG_OOB), EOPNOTSUPP);
  EXPECT_EQ(error_of(rsendto(client, "x", 1, 0, as_sockaddr(address), sizeof address)), EISCONN);
  EXPECT_EQ(rsendto(client, "x", 1, 0, nullptr, 0), 1);
  EXPECT_EQ(rsendto(client, "x", 1, 0, as_sockaddr(address), 0), 1) << "of no length: no address";
}

TEST_F(RsocketsEdges, Receive_OfZeroBytes_DoesNotWait) {
  make_pair();
  char c;
  EXPECT_EQ(rrecv(server, &c, 0, 0), 0);
  EXPECT_EQ(rreadv(server, nullptr, 0), 0);
  EXPECT_EQ(rrecv(server, &c, 0, MSG_WAITALL), 0);
}

TEST_F(RsocketsEdges, Receive_NonBlocking_ReturnsTheDataThatIsThere) {
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

TEST_F(RsocketsEdges, Peek_OfSeveralMessagesAcrossTheRingsEnd_ReturnsAll) {
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

TEST_F(RsocketsEdges, WaitAll_MoreThanTheBuffer_ReturnsAll) {
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

TEST_F(RsocketsEdges, ListLongerThanTheInlineLimit_ArrivesWhole) {
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

TEST_F(RsocketsEdges, Connect_RouteToNoHost_Fails) {
  listen_now();
  client = rsocket(AF_INET, SOCK_STREAM, 0);
  const ibv_path_data none{};
  ASSERT_EQ(rsetsockopt(client, SOL_RDMA, RDMA_ROUTE, &none, sizeof none), 0);
  EXPECT_EQ(error_of(rconnect(client, as_sockaddr(address), sizeof address)), EINVAL);
}

TEST_F(RsocketsEdges, WaitAll_EndOfStream_ReturnsTheRest) {
  make_pair();
  ASSERT_EQ(rsend(client, "abc", 3, 0), 3);
  ASSERT_EQ(rshutdown(client, SHUT_WR), 0);
  char room[8];
  EXPECT_EQ(rrecv(server, room, sizeof room, MSG_WAITALL), 3);
  EXPECT_EQ(rrecv(server, room, sizeof room, MSG_WAITALL), 0);
}

TEST_F(RsocketsEdges, WaitAll_Timeout_ReturnsTheDataThatIsThere) {
  make_pair();
  const timeval limit{0, 10'000};
  ASSERT_EQ(rsetsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  ASSERT_EQ(rsend(client, "abc", 3, 0), 3);
  wait_readable(server);
  char room[8];
  EXPECT_EQ(rrecv(server, room, sizeof room, MSG_WAITALL), 3);
  EXPECT_EQ(read_error(server, 0), EAGAIN);
}

TEST_F(RsocketsEdges, Send_FullConnection_ReturnsAfterItsTimeout) {
  make_pair();
  fill(client, server);
  const timeval limit{0, 10'000};
  ASSERT_EQ(rsetsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(write_error(client, 0), EAGAIN);
  EXPECT_EQ(write_error(client, MSG_DONTWAIT), EAGAIN);
}

TEST_F(RsocketsEdges, Lists_OfNegativeLength_AreRefused) {
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

TEST_F(RsocketsEdges, ControlMessages_AreRefused) {
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

TEST_F(RsocketsEdges, Receive_Signal_FailsWithEintr) {
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
