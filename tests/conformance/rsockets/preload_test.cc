// SPDX-License-Identifier: Apache-2.0
// The calls of a TCP program behind the preload library, which this program is linked to ahead of libc: each call below
// is the library's. A socket whose data go over an rsocket is an unconnected one for the kernel.
#include <functional>

#include "preload_support.h"

using namespace nupa::preload_test;

TEST_F(Preload, Names_AreThoseOfTheRsocket) {
  make_pair();
  sockaddr_in local{}, peer{};
  socklen_t length = sizeof local;
  ASSERT_EQ(getsockname(client, as_out(&local), &length), 0);
  ASSERT_EQ(getpeername(server, as_out(&peer), &length), 0);
  EXPECT_NE(local.sin_port, 0);
  EXPECT_EQ(local.sin_port, peer.sin_port);
  ASSERT_EQ(getpeername(client, as_out(&peer), &length), 0);
  EXPECT_EQ(peer.sin_port, address.sin_port);
}

TEST_F(Preload, SendAndReceive_EachCall_MovesData) {
  make_pair();
  char a[] = "ab", b[] = "cd";
  iovec out[] = {{a, 2}, {b, 2}};
  msghdr message{};
  message.msg_iov = out;
  message.msg_iovlen = 2;
  EXPECT_EQ(write(client, "12", 2), 2);
  EXPECT_EQ(writev(client, out, 2), 4);
  EXPECT_EQ(send(client, "34", 2, 0), 2);
  EXPECT_EQ(sendto(client, "56", 2, 0, nullptr, 0), 2);
  EXPECT_EQ(sendmsg(client, &message, 0), 4);
  char x[2], y[2], z[4];
  iovec in[] = {{x, 2}, {y, 2}};
  EXPECT_EQ(recv(server, z, 4, MSG_WAITALL), 4);
  EXPECT_EQ(std::string(z, 4), "12ab");
  EXPECT_EQ(read(server, x, 2), 2);
  EXPECT_EQ(std::string(x, 2), "cd");
  EXPECT_EQ(recvfrom(server, z, 2, MSG_WAITALL, nullptr, nullptr), 2);
  EXPECT_EQ(std::string(z, 2), "34");
  EXPECT_EQ(recv(server, z, 2, MSG_WAITALL), 2);
  EXPECT_EQ(std::string(z, 2), "56");
  message.msg_iov = in;
  EXPECT_EQ(recvmsg(server, &message, MSG_WAITALL | MSG_PEEK), 4);
  EXPECT_EQ(std::string(x, 2) + std::string(y, 2), "abcd");
  EXPECT_EQ(readv(server, in, 2), 4);
  EXPECT_EQ(read_error(server), EAGAIN);
  EXPECT_EQ(shutdown(client, SHUT_WR), 0);
  EXPECT_EQ(read(server, x, 2), 0);
}

TEST_F(Preload, Accept_ClientWithoutTheLibrary_IsServed) {
  make_pair();
  const int plain = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(syscall(SYS_connect, plain, &address, sizeof address), 0);
  EXPECT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
  sockaddr_in peer{};
  socklen_t length = sizeof peer;
  const int accepted = accept4(listener, as_out(&peer), &length, SOCK_NONBLOCK);
  ASSERT_GE(accepted, 0);
  EXPECT_TRUE(connected_by_tcp(accepted));
  EXPECT_EQ(length, sizeof peer);
  EXPECT_EQ(read_error(accepted), EAGAIN);
  EXPECT_EQ(send(plain, "x", 1, 0), 1);
  EXPECT_EQ(poll_one(accepted, POLLIN, kSoonMs), POLLIN);
  EXPECT_EQ(read_some(accepted), "x");
  close(accepted);
  close(plain);
}

TEST_F(Preload, Connect_ListenerWithoutAnRsocket_UsesTcp) {
  // It has not waited for connections yet, so it has no rsocket.
  client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
  EXPECT_TRUE(connected_by_tcp(client));
  EXPECT_EQ(error_of(connect(client, as_sockaddr(address), sizeof address)), EISCONN);
  server = accept(listener, nullptr, nullptr);
  EXPECT_TRUE(connected_by_tcp(server));
  EXPECT_EQ(write(client, "x", 1), 1);
  EXPECT_EQ(read_some(server), "x");
}

TEST_F(Preload, Listener_AfterOneThatWasClosed_HasAnRsocket) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);  // from here on it has an rsocket
  close(listener);
  ASSERT_NO_FATAL_FAILURE(SetUp());
  make_pair();
}

TEST_F(Preload, Connect_WithoutAListener_IsRefused) {
  close(listener);
  listener = -1;
  client = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(error_of(connect(client, as_sockaddr(address), sizeof address)), ECONNREFUSED);
}

TEST_F(Preload, Connect_NonBlocking_CompletesInPoll) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const int error = error_of(connect(client, as_sockaddr(address), sizeof address));
  ASSERT_TRUE(error == 0 || error == EINPROGRESS) << std::strerror(error);
  EXPECT_EQ(poll_one(client, POLLOUT, kSoonMs), POLLOUT);
  int so_error = -1;
  socklen_t length = sizeof so_error;
  ASSERT_EQ(getsockopt(client, SOL_SOCKET, SO_ERROR, &so_error, &length), 0);
  EXPECT_EQ(so_error, 0);
  EXPECT_EQ(error_of(connect(client, as_sockaddr(address), sizeof address)), EISCONN);
  EXPECT_EQ(read_error(client), EAGAIN);
  char c;
  EXPECT_EQ(error_of(read(client, &c, 1)), EAGAIN) << "the rsocket does not wait either";
  EXPECT_FALSE(connected_by_tcp(client));
}

TEST_F(Preload, Connect_NonBlockingToAListenerWithoutAnRsocket_UsesTcp) {
  client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const int error = error_of(connect(client, as_sockaddr(address), sizeof address));
  ASSERT_TRUE(error == 0 || error == EINPROGRESS) << std::strerror(error);
  EXPECT_EQ(poll_one(client, POLLOUT, kSoonMs), POLLOUT);
  EXPECT_TRUE(connected_by_tcp(client));
}

TEST_F(Preload, Accept4_Flags_AreTheNewDescriptors) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  ASSERT_EQ(fcntl(listener, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(error_of(accept(listener, nullptr, nullptr)), EAGAIN);
  for (const int flags : {0, int{SOCK_NONBLOCK}, int{SOCK_CLOEXEC}}) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(connect(fd, as_sockaddr(address), sizeof address), 0);
    ASSERT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    const int accepted = accept4(listener, as_out(&peer), &length, flags);
    ASSERT_GE(accepted, 0);
    EXPECT_FALSE(connected_by_tcp(accepted));
    EXPECT_NE(peer.sin_port, 0);
    EXPECT_EQ(fcntl(accepted, F_GETFL) & O_NONBLOCK, flags == SOCK_NONBLOCK ? O_NONBLOCK : 0);
    EXPECT_EQ(fcntl(accepted, F_GETFD), flags == SOCK_CLOEXEC ? FD_CLOEXEC : 0);
    if (flags == SOCK_NONBLOCK) {
      EXPECT_EQ(error_of_read(accepted, fd), EAGAIN);
    }
    close(accepted);
    close(fd);
  }
}

TEST_F(Preload, NonBlocking_SetByFcntlOrIoctl_FailsWithEagain) {
  make_pair();
  char c;
  ASSERT_EQ(fcntl(server, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(error_of_read(server, client), EAGAIN);
  ASSERT_EQ(fcntl(server, F_SETFL, 0), 0);
  std::atomic<bool> waits{false};
  ssize_t count = -1;
  std::thread reader([&] {
    waits = true;
    count = read(server, &c, 1);
  });
  while (!waits) std::this_thread::yield();
  EXPECT_EQ(write(client, "x", 1), 1);
  reader.join();
  EXPECT_EQ(count, 1) << "it waits again";
  int on = 1;
  ASSERT_EQ(ioctl(server, FIONBIO, &on), 0);
  EXPECT_EQ(error_of_read(server, client), EAGAIN);
  int waiting = -1;
  ASSERT_EQ(ioctl(server, FIONREAD, &waiting), 0);
  EXPECT_EQ(waiting, 0);
  EXPECT_EQ(write(client, "abc", 3), 3);
  ASSERT_EQ(poll_one(server, POLLIN, kSoonMs), POLLIN);
  ASSERT_EQ(ioctl(server, FIONREAD, &waiting), 0);
  EXPECT_EQ(waiting, 3);
}

TEST_F(Preload, Options_SetBeforeConnect_AreTheConnections) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  client = socket(AF_INET, SOCK_STREAM, 0);
  const timeval limit{0, 10'000};
  ASSERT_EQ(setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0);
  server = accept(listener, nullptr, nullptr);
  EXPECT_EQ(error_of_read(client, server), EAGAIN);
  ASSERT_EQ(setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(error_of_read(server, client), EAGAIN) << "nor afterwards";
  const int on = 1;
  EXPECT_EQ(setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
  EXPECT_EQ(error_of(setsockopt(server, SOL_SOCKET, 12345, &on, sizeof on)), ENOPROTOOPT);
}

TEST_F(Preload, Write_ConnectionEnded_RaisesSigpipe) {
  make_pair();
  static std::atomic<int> signals{0};
  signals = 0;
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { ++signals; };
  ASSERT_EQ(sigaction(SIGPIPE, &action, &before), 0);
  ASSERT_EQ(shutdown(client, SHUT_WR), 0);
  const iovec piece{const_cast<char*>("x"), 1};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(&piece);
  message.msg_iovlen = 1;
  EXPECT_EQ(error_of(send(client, "x", 1, MSG_NOSIGNAL)), EPIPE);
  EXPECT_EQ(error_of(sendmsg(client, &message, MSG_NOSIGNAL)), EPIPE);
  EXPECT_EQ(error_of(sendto(client, "x", 1, MSG_NOSIGNAL, nullptr, 0)), EPIPE);
  EXPECT_EQ(signals, 0);
  EXPECT_EQ(error_of(write(client, "x", 1)), EPIPE);
  EXPECT_EQ(error_of(writev(client, &piece, 1)), EPIPE);
  EXPECT_EQ(error_of(send(client, "x", 1, 0)), EPIPE);
  EXPECT_EQ(error_of(sendmsg(client, &message, 0)), EPIPE);
  EXPECT_EQ(error_of(sendto(client, "x", 1, 0, nullptr, 0)), EPIPE);
  EXPECT_EQ(signals, 5);
  sigaction(SIGPIPE, &before, nullptr);
}

TEST_F(Preload, Dup_OfAConnection_SharesIt) {
  make_pair();
  const int copies[] = {dup(client), fcntl(client, F_DUPFD, 0), dup2(client, 300), dup3(client, 301, O_CLOEXEC)};
  close(client);
  client = -1;
  for (const int copy : copies) {
    ASSERT_GE(copy, 0);
    EXPECT_EQ(write(copy, "x", 1), 1);
    EXPECT_EQ(read_some(server), "x");
  }
  for (const int copy : copies) {
    EXPECT_EQ(read_error(server), EAGAIN) << "one is left";
    close(copy);
  }
  EXPECT_EQ(read_some(server), "") << "the last one was the connection's end";
}

TEST_F(Preload, Dup2_OverAConnection_EndsIt) {
  make_pair();
  const int other = eventfd(1, 0);
  EXPECT_EQ(error_of(dup2(12345, client)), EBADF);
  EXPECT_EQ(write(client, "x", 1), 1) << "that was no descriptor";
  EXPECT_EQ(read_some(server), "x");
  ASSERT_EQ(dup2(other, client), client);
  EXPECT_EQ(read_some(server), "");
  uint64_t value;
  EXPECT_EQ(read(client, &value, sizeof value), static_cast<ssize_t>(sizeof value));
  ASSERT_EQ(dup2(server, server), server);
  EXPECT_EQ(read_some(server), "");
  close(other);
}

TEST_F(Preload, Sendfile_SendsFromTheOffset) {
  make_pair();
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  const int fd = fileno(file);
  ASSERT_EQ(write(fd, "0123456789", 10), 10);
  off_t offset = 3;
  EXPECT_EQ(sendfile(client, fd, &offset, 4), 4);
  EXPECT_EQ(offset, 7);
  EXPECT_EQ(lseek(fd, 0, SEEK_CUR), 10) << "the file's own place stays";
  EXPECT_EQ(sendfile(client, fd, &offset, 100), 3) << "up to the file's end";
  EXPECT_EQ(offset, 10);
  EXPECT_EQ(sendfile(client, fd, &offset, 100), 0);
  ASSERT_EQ(lseek(fd, 8, SEEK_SET), 8);
  EXPECT_EQ(sendfile(client, fd, nullptr, 1), 1);
  EXPECT_EQ(lseek(fd, 0, SEEK_CUR), 9);
  char room[16];
  EXPECT_EQ(recv(server, room, 8, MSG_WAITALL), 8);
  EXPECT_EQ(std::string(room, 8), "34567898");
  std::fclose(file);
}

// Waiting.

TEST_F(Preload, PollAndSelect_BothKindsOfDescriptors_ReportBoth) {
  make_pair();
  const int plain = eventfd(0, 0);
  pollfd entries[] = {{server, POLLIN | POLLOUT, 0}, {plain, POLLIN, 0}, {-1, POLLIN, 0}};
  EXPECT_EQ(poll(entries, 3, 0), 1);
  EXPECT_EQ(entries[0].revents, POLLOUT);
  entries[0].events = POLLIN;
  EXPECT_EQ(poll(entries, 3, 5), 0);
  const auto wait_for = [&](auto call) {
    std::thread late(call);
    const int count = poll(entries, 3, kSoonMs);
    late.join();
    return count;
  };
  EXPECT_EQ(wait_for([&] { EXPECT_EQ(write(client, "x", 1), 1); }), 1);
  EXPECT_EQ(entries[0].revents, POLLIN);
  EXPECT_EQ(entries[1].revents, 0);
  const timespec limit{kSoonMs / 1000, 0};
  EXPECT_EQ(ppoll(entries, 3, &limit, nullptr), 1);
  EXPECT_EQ(read_some(server), "x");
  const uint64_t one = 1;
  EXPECT_EQ(wait_for([&] { EXPECT_EQ(write(plain, &one, sizeof one), 8); }), 1);
  EXPECT_EQ(entries[0].revents, 0);
  EXPECT_EQ(entries[1].revents, POLLIN);
  fd_set read_set, write_set;
  FD_ZERO(&read_set);
  FD_ZERO(&write_set);
  FD_SET(server, &read_set);
  FD_SET(plain, &read_set);
  FD_SET(server, &write_set);
  timeval now{};
  EXPECT_EQ(select(std::max(server, plain) + 1, &read_set, &write_set, nullptr, &now), 2);
  EXPECT_FALSE(FD_ISSET(server, &read_set));
  EXPECT_TRUE(FD_ISSET(plain, &read_set));
  EXPECT_TRUE(FD_ISSET(server, &write_set));
  close(plain);
}

TEST_F(Preload, Poll_OfAListener_ReportsEitherKindOfConnection) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  for (const bool plain : {true, false}) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    std::thread late([&] {
      if (plain) {
        EXPECT_EQ(syscall(SYS_connect, fd, &address, sizeof address), 0);
      } else {
        EXPECT_EQ(connect(fd, as_sockaddr(address), sizeof address), 0);
      }
    });
    EXPECT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
    late.join();
    const int accepted = accept(listener, nullptr, nullptr);
    EXPECT_EQ(connected_by_tcp(accepted), plain);
    close(accepted);
    close(fd);
  }
}

TEST_F(Preload, Accept_Waits_ReturnsEitherKindOfConnection) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  for (const bool plain : {true, false}) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    std::thread late([&] {
      // sleep: the accept waits by then; if it does not, it finds the connection at once
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (plain) {
        EXPECT_EQ(syscall(SYS_connect, fd, &address, sizeof address), 0);
      } else {
        EXPECT_EQ(connect(fd, as_sockaddr(address), sizeof address), 0);
      }
    });
    const int accepted = accept(listener, nullptr, nullptr);
    late.join();
    EXPECT_EQ(connected_by_tcp(accepted), plain);
    close(accepted);
    close(fd);
  }
}

TEST_F(Preload, Epoll_LevelTriggered_ReportsAsLongAsItHolds) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 7), 0);
  EXPECT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 7), EEXIST);
  EXPECT_EQ(wait_epoll(0), "");
  ASSERT_EQ(write(client, "x", 1), 1);
  EXPECT_EQ(wait_epoll(kSoonMs), "7:1");
  EXPECT_EQ(wait_epoll(0), "7:1");
  EXPECT_EQ(read_some(server), "x");
  EXPECT_EQ(wait_epoll(0), "");
  ASSERT_EQ(control(EPOLL_CTL_MOD, server, EPOLLOUT, 8), 0);
  EXPECT_EQ(wait_epoll(kSoonMs), "8:4");
  ASSERT_EQ(control(EPOLL_CTL_DEL, server, 0, 0), 0);
  EXPECT_EQ(wait_epoll(0), "");
  EXPECT_EQ(control(EPOLL_CTL_DEL, server, 0, 0), ENOENT);
  EXPECT_EQ(control(EPOLL_CTL_MOD, server, EPOLLIN, 7), ENOENT);
  EXPECT_EQ(control(99, server, EPOLLIN, 7), EINVAL);
  EXPECT_EQ(error_of(epoll_ctl(epoll, EPOLL_CTL_ADD, server, nullptr)), EFAULT);
  epoll_event event;
  EXPECT_EQ(error_of(epoll_wait(epoll, &event, 0, 0)), EINVAL);
}

TEST_F(Preload, Epoll_EdgeTriggered_ReportsOnce) {
  make_pair();
  make_epoll();
  // One arrival may be more than one edge, as with TCP, where each segment is one (epoll(7)). What is only there is
  // none.
  const auto edges_end = [this] {
    constexpr int kMostEdges = 4;
    for (int edge = 0; edge < kMostEdges; ++edge) {
      if (wait_epoll(0).empty()) return true;
    }
    return false;
  };
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN | EPOLLET, 7), 0);
  ASSERT_EQ(write(client, "x", 1), 1);
  EXPECT_EQ(wait_epoll(kSoonMs), "7:1");
  EXPECT_TRUE(edges_end());
  EXPECT_EQ(wait_epoll(5), "") << "nor after a sleep";
  ASSERT_EQ(write(client, "y", 1), 1);
  EXPECT_EQ(wait_epoll(kSoonMs), "7:1") << "more has come";
  EXPECT_TRUE(edges_end());
  ASSERT_EQ(control(EPOLL_CTL_MOD, server, EPOLLIN | EPOLLET, 9), 0);
  EXPECT_EQ(wait_epoll(kSoonMs), "9:1") << "changed, so it is reported again";
  EXPECT_TRUE(edges_end());
}

TEST_F(Preload, Epoll_OneShot_ReportsOnceUntilItIsChanged) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN | EPOLLONESHOT, 7), 0);
  ASSERT_EQ(write(client, "x", 1), 1);
  EXPECT_EQ(wait_epoll(kSoonMs), "7:1");
  ASSERT_EQ(write(client, "y", 1), 1);
  EXPECT_EQ(wait_epoll(5), "");
  ASSERT_EQ(control(EPOLL_CTL_MOD, server, EPOLLIN | EPOLLONESHOT, 8), 0);
  EXPECT_EQ(wait_epoll(kSoonMs), "8:1");
  EXPECT_EQ(wait_epoll(0), "");
}

TEST_F(Preload, Epoll_EndOfStream_ReportsTheRequestedEvents) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLRDHUP, 7), 0);
  EXPECT_EQ(wait_epoll(0), "");
  ASSERT_EQ(shutdown(client, SHUT_WR), 0);
  EXPECT_EQ(wait_epoll(kSoonMs), "7:2000");
  ASSERT_EQ(shutdown(server, SHUT_WR), 0);
  EXPECT_EQ(wait_epoll(kSoonMs), "7:2010");
}

TEST_F(Preload, Epoll_AnotherThreadWritesOrAdds_Returns) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 7), 0);
  for (int round = 0; round < 20; ++round) {
    std::thread late([&] {
      // sleep: the write comes before and after the other thread sleeps
      std::this_thread::sleep_for(std::chrono::microseconds(300 * (round % 4)));
      EXPECT_EQ(write(client, "x", 1), 1);
    });
    EXPECT_EQ(wait_epoll(kSoonMs), "7:1") << round;
    late.join();
    EXPECT_EQ(read_some(server), "x");
  }
  std::thread adds([&] {
    // sleep: the other thread sleeps by then; if it does not, it finds the descriptor at once
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT, 8), 0);
  });
  EXPECT_EQ(wait_epoll(kSoonMs), "8:4");
  adds.join();
}

TEST_F(Preload, Epoll_BothKindsAndListeners_AreReported) {
  make_epoll();
  const int plain = eventfd(0, 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, listener, EPOLLIN, 1), 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, plain, EPOLLIN, 2), 0);
  EXPECT_EQ(wait_epoll(0), "");
  client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0);
  ASSERT_FALSE(connected_by_tcp(client));
  EXPECT_EQ(wait_epoll(kSoonMs), "1:1");
  server = accept(listener, nullptr, nullptr);
  ASSERT_GE(server, 0);
  EXPECT_EQ(wait_epoll(0), "");
  const int tcp = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(syscall(SYS_connect, tcp, &address, sizeof address), 0);
  EXPECT_EQ(wait_epoll(kSoonMs), "1:1") << "by the kernel's socket";
  close(accept(listener, nullptr, nullptr));
  close(tcp);
  const uint64_t one = 1;
  ASSERT_EQ(write(plain, &one, sizeof one), 8);
  EXPECT_EQ(wait_epoll(kSoonMs), "2:1");
  // A member that is closed is none any more, and its number may be another's.
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLOUT, 3), 0);
  close(server);
  server = -1;
  EXPECT_EQ(wait_epoll(0), "2:1");
  close(plain);
}

TEST_F(Preload, Epoll_AddedBeforeTheConnect_IsReportedAfterIt) {
  make_epoll();
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLIN | EPOLLOUT, 5), 0);
  const int error = error_of(connect(client, as_sockaddr(address), sizeof address));
  ASSERT_TRUE(error == 0 || error == EINPROGRESS);
  EXPECT_EQ(wait_epoll(kSoonMs), "5:4");
  server = accept(listener, nullptr, nullptr);
  ASSERT_EQ(control(EPOLL_CTL_MOD, client, EPOLLIN, 6), 0);
  ASSERT_EQ(write(server, "x", 1), 1);
  EXPECT_EQ(wait_epoll(kSoonMs), "6:1");
}

// Processes.

TEST_F(Preload, Fork_Child_HasNoConnectionAndDoesNotEndTheParents) {
  make_pair();
  const pid_t child = fork();
  if (child == 0) {
    char c;
    const bool lost = error_of(read(client, &c, 1)) == ECONNRESET && error_of(write(client, "x", 1)) == ECONNRESET &&
                      error_of(recv(client, &c, 1, 0)) == ECONNRESET;
    close(client);
    close(server);
    _exit(lost ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_error(server), EAGAIN);
  EXPECT_EQ(write(client, "x", 1), 1);
  EXPECT_EQ(read_some(server), "x");
}

/// A process of its own for the tests below: connects, sends a word, and ends in the way that it is told.
TEST(PreloadChild, DISABLED_EndsWithoutClosing) {
  const char* port = std::getenv(kPortOfParent);
  ASSERT_NE(port, nullptr);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = loopback(htons(static_cast<uint16_t>(std::atoi(port))));
  if (connect(fd, as_sockaddr(address), sizeof address) != 0 || connected_by_tcp(fd)) _exit(2);
  if (write(fd, "bye", 3) != 3) _exit(3);
  const std::string end = std::getenv(kEndOfChild);
  if (end == "exit") return;  // the program ends with the connection open
  char c;
  if (read(fd, &c, 1) != 1) _exit(4);  // the parent has read
  raise(SIGKILL);
}

namespace {

pid_t start_child(const sockaddr_in& address, const char* end) {
  setenv(kPortOfParent, std::to_string(ntohs(address.sin_port)).c_str(), 1);
  return start_case("PreloadChild.*", kEndOfChild, end, true);
}

}  // namespace

TEST_F(Preload, Exit_WithoutClose_IsAnEndOfFile) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
  const pid_t child = start_child(address, "exit");
  ASSERT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
  server = accept(listener, nullptr, nullptr);
  ASSERT_GE(server, 0);
  ASSERT_FALSE(connected_by_tcp(server));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_some(server), "bye");
  EXPECT_EQ(read_some(server), "") << "the end of file, no error";
}

/// `server` is the end of a connection whose other process is killed; `flags` as for accept4().
class PreloadKilled : public Preload {
 protected:
  void accept_one_that_is_killed(int flags = 0) {
    EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);
    const pid_t child = start_child(address, "kill");
    ASSERT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
    server = accept4(listener, nullptr, nullptr, flags);
    ASSERT_GE(server, 0);
    ASSERT_EQ(poll_one(server, POLLIN, kSoonMs), POLLIN);
    EXPECT_EQ(read_some(server), "bye");
    EXPECT_EQ(write(server, "x", 1), 1);
    EXPECT_NE(end_of(child), 0);
    EXPECT_NE(poll_one(server, 0, kSoonMs) & POLLHUP, 0);
  }
};

TEST_F(PreloadKilled, Send_NonBlockingAfterAKill_SucceedsOnceAsByTcp) {
  const iovec pieces[] = {{const_cast<char*>("ab"), 2}, {const_cast<char*>("c"), 1}};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces);
  message.msg_iovlen = 2;
  const std::function<ssize_t()> sends[] = {
      [&] { return send(server, "abc", 3, MSG_DONTWAIT | MSG_NOSIGNAL); },
      [&] { return sendmsg(server, &message, MSG_DONTWAIT | MSG_NOSIGNAL); },
      [&] { return writev(server, pieces, 2); },
  };
  for (const auto& send_three : sends) {
    accept_one_that_is_killed(&send_three == &sends[2] ? SOCK_NONBLOCK : 0);
    if (HasFatalFailure()) return;
    EXPECT_EQ(send_three(), 3);
    EXPECT_EQ(read_some(server), "") << "which ends the program's wait for an answer";
    EXPECT_EQ(error_of(send(server, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL)), EPIPE);
    close(server);
    server = -1;
  }
}

TEST_F(PreloadKilled, Send_BlockingAfterAKill_ReportsTheReset) {
  accept_one_that_is_killed();
  if (HasFatalFailure()) return;
  EXPECT_EQ(error_of(send(server, "x", 1, 0)), ECONNRESET);
  EXPECT_EQ(error_of(send(server, "x", 1, MSG_NOSIGNAL)), EPIPE);
}

TEST_F(PreloadKilled, Receive_PeerIsKilled_FailsWithEconnreset) {
  accept_one_that_is_killed();
  if (HasFatalFailure()) return;
  EXPECT_EQ(read_error(server), ECONNRESET);
}
