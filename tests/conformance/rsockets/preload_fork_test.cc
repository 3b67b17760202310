// SPDX-License-Identifier: Apache-2.0
/// A child process and the sockets of its parent.
#include <fcntl.h>

#include <functional>

#include "../../support/held_allocation.h"
#include "api_peer.h"
#include "preload_edges.h"
#include "preload_support.h"

using nupa::preload_test::as_out;
using nupa::preload_test::connected_by_tcp;
using nupa::preload_test::end_of;
using nupa::preload_test::error_of;
using nupa::preload_test::kConnectMs;
using nupa::preload_test::kPortOfParent;
using nupa::preload_test::PreloadAlone;
using nupa::preload_test::PreloadEdges;
using nupa::preload_test::start_case;
using nupa::rsockets_test::as_sockaddr;
using nupa::rsockets_test::kSoonMs;
using nupa::rsockets_test::loopback;
using nupa::test::HeldAllocation;

TEST_F(PreloadEdges, Fork_ChildHasUnconnectedSocketsAndConnectsByTcp) {
  make_pair();
  const pid_t child = fork();
  if (child == 0) {
    char c = 0;
    const iovec piece{&c, 1};
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(&piece);
    message.msg_iovlen = 1;
    sockaddr_in name{};
    socklen_t length = sizeof name;
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const int fresh = socket(AF_INET, SOCK_STREAM, 0);
    pollfd entry{client, POLLIN, 0};
    int failed = 0;
    int number = 0;
    const auto check = [&](bool holds) {
      ++number;
      if (!holds && failed == 0) failed = number;
    };
    check(error_of(readv(client, &piece, 1)) == ECONNRESET);
    check(error_of(writev(client, &piece, 1)) == ECONNRESET);
    check(error_of(recvmsg(client, &message, 0)) == ECONNRESET);
    check(error_of(sendmsg(client, &message, 0)) == ECONNRESET);
    check(error_of(recvfrom(client, &c, 1, 0, nullptr, nullptr)) == ECONNRESET);
    check(error_of(sendto(client, &c, 1, 0, nullptr, 0)) == ECONNRESET);
    check(error_of(sendfile(client, file, nullptr, 1)) == ECONNRESET);
    check(error_of(shutdown(client, SHUT_RDWR)) == ENOTCONN);
    check(error_of(getpeername(client, as_out(&name), &length)) == ENOTCONN);
    check(poll(&entry, 1, 0) == 1 && (entry.revents & POLLHUP) != 0);
    check(connect(fresh, as_sockaddr(address), sizeof address) == 0 && connected_by_tcp(fresh));
    _exit(failed);
  }
  EXPECT_EQ(end_of(child), 0) << "the exit status is the first check that failed, times 256";
  close(accept(listener, nullptr, nullptr));
  EXPECT_EQ(write(client, "x", 1), 1);
  EXPECT_EQ(read_some(server), "x");
}

namespace {

/// What a child of fork() does, which must not wait: the status that it ends with.
int in_child(const std::function<bool()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSoonMs / 1000);
    _exit(work() ? 0 : 1);
  }
  return end_of(child);
}

int make_listener() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  EXPECT_EQ(listen(fd, 1), 0) << std::strerror(errno);  // the kernel finds it a port
  return fd;
}

}  // namespace

TEST_F(PreloadEdges, Fork_WhileAThreadMakesASet_TheChildClosesItsSet) {
  make_pair();
  make_epoll();
  const HeldAllocation adding([&] { control(EPOLL_CTL_ADD, client, EPOLLIN, 1); });
  ASSERT_TRUE(adding.stands());
  EXPECT_EQ(in_child([&] {
              const bool closed = close(client) == 0 && close(server) == 0 && close(epoll) == 0;
              // It makes sets of its own.
              make_epoll();
              const int plain = socket(AF_INET, SOCK_STREAM, 0);
              return closed && control(EPOLL_CTL_ADD, plain, EPOLLIN, 2) == 0 && close(plain) == 0 && close(epoll) == 0;
            }),
            0);
}

TEST_F(PreloadEdges, Fork_WhileAThreadAddsAMember_TheChildUsesTheSet) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 1), 0);
  const HeldAllocation adding([&] { control(EPOLL_CTL_ADD, client, EPOLLIN, 2); });
  ASSERT_TRUE(adding.stands());
  EXPECT_EQ(in_child([&] {
              const int plain = socket(AF_INET, SOCK_STREAM, 0);
              return close(client) == 0 && control(EPOLL_CTL_ADD, plain, EPOLLIN, 3) == 0 && close(plain) == 0;
            }),
            0);
}

TEST_F(PreloadEdges, Fork_WhileAThreadMakesAListenersRsocket_TheChildAccepts) {
  const int other = make_listener();
  {
    const HeldAllocation accepting([&] { accept(other, nullptr, nullptr); });
    ASSERT_TRUE(accepting.stands());
    EXPECT_EQ(in_child([&] { return error_of(accept(other, nullptr, nullptr)) == EAGAIN; }), 0);
  }
  close(other);
}

TEST_F(PreloadAlone, DISABLED_Fork) {
  // The parent listens, and nobody has waited for a connection so far.
  const pid_t child = fork();
  if (child == 0) {
    make_pair();
    const bool moved = !HasFailure() && write(client, "x", 1) == 1 && read_some(server) == "x";
    _exit(moved ? 0 : 1);
  }
  EXPECT_EQ(end_of(child), 0);
}

TEST(PreloadOwnProcess, Fork_BeforeTheFirstRsocket_ChildMakesItsOwn) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_Fork", kConnectMs, std::to_string(kSoonMs), false)), 0);
}

TEST_F(PreloadAlone, DISABLED_CloseOfAListener) {
  const int other = make_listener(), plain = socket(AF_INET, SOCK_STREAM, 0);
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, plain, EPOLLIN, 1), 0);  // so that the list of sets is there
  // The first one that is closed: the library keeps what it had for it, and needs memory for that.
  const HeldAllocation closing([&] { close(other); });
  ASSERT_TRUE(closing.stands());
  EXPECT_EQ(in_child([&] { return close(listener) == 0; }), 0);
}

TEST(PreloadOwnProcess, Fork_WhileAThreadClosesAListener_TheChildClosesItsOwn) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_CloseOfAListener", kConnectMs, std::to_string(kSoonMs), false)),
            0);
}

TEST_F(PreloadAlone, DISABLED_FirstConnect) {
  sockaddr_in6 nobody{};
  nobody.sin6_family = AF_INET6;
  nobody.sin6_port = address.sin_port;
  nobody.sin6_addr = in6addr_loopback;
  const auto try_once = [&] {
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    EXPECT_GE(fd, 0);
    const int rc = connect(fd, reinterpret_cast<const sockaddr*>(&nobody), sizeof nobody);
    close(fd);
    return rc != 0;
  };
  // Looked for among the peers without rsockets, by a key that needs memory.
  const HeldAllocation connecting(try_once);
  ASSERT_TRUE(connecting.stands());
  EXPECT_EQ(in_child(try_once), 0);
}

TEST(PreloadOwnProcess, Fork_WhileAThreadLooksForAPlainPeer_TheChildConnects) {
  const int six = socket(AF_INET6, SOCK_STREAM, 0);
  if (six < 0) GTEST_SKIP() << "the machine has no IPv6";
  close(six);
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_FirstConnect", kConnectMs, "5000", false)), 0);
}

/// A process of its own, which only connects.
TEST(PreloadClient, DISABLED_Fork) {
  const char* port = std::getenv(kPortOfParent);
  ASSERT_NE(port, nullptr);
  const auto connected = [to = loopback(static_cast<uint16_t>(std::atoi(port)))] {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(fd, as_sockaddr(to), sizeof to), 0) << std::strerror(errno);
    return fd;
  };
  const int fd = connected();
  ASSERT_FALSE(connected_by_tcp(fd));
  char c;
  ASSERT_EQ(read(fd, &c, 1), 1);  // the connection has been accepted
  const pid_t child = fork();
  if (child == 0) {
    const bool lost = error_of(recv(fd, &c, 1, MSG_DONTWAIT)) == ECONNRESET;
    close(fd);
    _exit(!lost ? 1 : connected_by_tcp(connected()) ? 0 : 2);
  }
  EXPECT_EQ(end_of(child), 0);
  EXPECT_EQ(write(fd, "x", 1), 1) << "the child has ended nothing";
  close(fd);
}

TEST_F(PreloadEdges, Fork_OfAProcessThatOnlyConnected_ChildHasNoConnection) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);  // from here on it has an rsocket, too
  const std::string port = std::to_string(ntohs(address.sin_port));
  const pid_t process = start_case("PreloadClient.DISABLED_Fork", kPortOfParent, port, false);
  EXPECT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
  server = accept(listener, nullptr, nullptr);
  ASSERT_GE(server, 0) << std::strerror(errno);
  EXPECT_FALSE(connected_by_tcp(server));
  EXPECT_EQ(write(server, "y", 1), 1);
  EXPECT_EQ(read_some(server), "x");
  EXPECT_EQ(end_of(process), 0);
}
