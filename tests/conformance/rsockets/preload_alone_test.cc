// SPDX-License-Identifier: Apache-2.0
/// Cases that run in a process of their own: it begins without rsockets, and with its own time limit for connecting.
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>

#include "api_peer.h"
#include "preload_edges.h"
#include "preload_support.h"

using nupa::preload_test::as_out;
using nupa::preload_test::connected_by_tcp;
using nupa::preload_test::descriptors;
using nupa::preload_test::end_of;
using nupa::preload_test::error_of;
using nupa::preload_test::kConnectMs;
using nupa::preload_test::Preload;
using nupa::preload_test::PreloadAlone;
using nupa::preload_test::PreloadEdges;
using nupa::preload_test::start_case;
using nupa::preload_test::Woken;
using nupa::rsockets_test::as_sockaddr;
using nupa::rsockets_test::await;
using nupa::rsockets_test::await_sleep;
using nupa::rsockets_test::kSoonMs;
using nupa::rsockets_test::Peer;

namespace {

constexpr const char* kConfig = "NUPA_SOCKETS_CONFIG";

}  // namespace

TEST_F(PreloadAlone, DISABLED_Connecting) {
  Peer peer;
  const sockaddr_in to = peer.listen();
  make_epoll();
  ASSERT_NO_FATAL_FAILURE(begin_connecting(&peer, to));
  EXPECT_EQ(error_of(connect(client, as_sockaddr(to), sizeof to)), EALREADY);
  EXPECT_EQ(read_error(client), EAGAIN);
  EXPECT_EQ(error_of(send(client, "x", 1, 0)), EAGAIN);
  EXPECT_EQ(poll_one(client, POLLIN | POLLOUT, 0), 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT, 5), 0);
  EXPECT_EQ(wait_epoll(0), "");
  // Programs set this back as soon as connect() has returned.
  ASSERT_EQ(fcntl(client, F_SETFL, 0), 0);
  EXPECT_EQ(poll_one(client, POLLOUT, 0), 0);
  ASSERT_TRUE(peer.accept());
  EXPECT_EQ(wait_epoll(kSoonMs), "5:4");
  EXPECT_EQ(poll_one(client, POLLOUT, 0), POLLOUT);
  EXPECT_FALSE(connected_by_tcp(client));
  ASSERT_TRUE(peer.next_message().has_value());
  std::atomic<pid_t> reader{0};
  ssize_t count = -1;
  std::thread reading([&] {
    char c;
    reader = gettid();
    count = read(client, &c, 1);
  });
  EXPECT_TRUE(await([&] { return reader != 0; }));
  EXPECT_TRUE(await_sleep(reader));
  EXPECT_EQ(peer.send_data("x"), IBV_WC_SUCCESS);
  reading.join();
  EXPECT_EQ(count, 1) << "the descriptor blocks";
}

TEST(PreloadOwnProcess, NonBlockingConnect_DoesNotBlock) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_Connecting", kConnectMs, std::to_string(kSoonMs), false)), 0);
}

TEST_F(PreloadAlone, DISABLED_SignalInConnect) {
  static std::atomic<int> signals{0};
  struct sigaction action {};
  action.sa_handler = [](int) { ++signals; };
  ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  Peer peer;
  const sockaddr_in to = peer.listen();
  client = socket(AF_INET, SOCK_STREAM, 0);
  std::atomic<pid_t> connecting{0};
  int error = -1;
  std::thread connects([&] {
    connecting = gettid();
    error = error_of(connect(client, as_sockaddr(to), sizeof to));
  });
  EXPECT_TRUE(peer.requested());
  EXPECT_TRUE(await_sleep(connecting));
  EXPECT_EQ(pthread_kill(connects.native_handle(), SIGUSR1), 0);
  EXPECT_TRUE(await([] { return signals != 0; }));
  EXPECT_TRUE(peer.accept());
  connects.join();
  EXPECT_EQ(error, 0) << std::strerror(error);
  EXPECT_FALSE(connected_by_tcp(client));
}

TEST(PreloadOwnProcess, Connect_Signal_GoesOn) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_SignalInConnect", kConnectMs, std::to_string(kSoonMs), false)), 0);
}

TEST_F(PreloadAlone, DISABLED_KeepaliveBeforeConnect) {
  Peer peer;
  peer.retries = 0;
  const sockaddr_in to = peer.listen();
  client = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;  // and a second
  ASSERT_EQ(setsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on), 0);
  ASSERT_EQ(setsockopt(client, IPPROTO_TCP, TCP_KEEPIDLE, &on, sizeof on), 0);
  std::thread connects([&] { EXPECT_EQ(connect(client, as_sockaddr(to), sizeof to), 0); });
  EXPECT_TRUE(peer.requested() && peer.accept());
  connects.join();
  EXPECT_TRUE(finds_silence(&peer, client));
}

TEST(PreloadOwnProcess, Connect_KeepaliveSetBefore_IsTheConnections) {
  EXPECT_EQ(
      end_of(start_case("PreloadAlone.DISABLED_KeepaliveBeforeConnect", kConnectMs, std::to_string(kSoonMs), false)),
      0);
}

TEST_F(PreloadAlone, DISABLED_Refused) {
  Peer peer;
  const sockaddr_in to = peer.listen(address.sin_port);
  ASSERT_EQ(to.sin_port, address.sin_port);
  make_epoll();
  client = -1;
  ASSERT_NO_FATAL_FAILURE(begin_connecting(&peer, to));
  peer.refuse();
  EXPECT_EQ(poll_one(client, POLLOUT, kSoonMs), POLLOUT) << "no error: TCP takes over";
  EXPECT_TRUE(connected_by_tcp(client));
  // Of the host's other ports nothing is known.
  close(client);
  close(listener);
  Preload::SetUp();
  make_pair();
}

TEST(PreloadOwnProcess, Connect_RsocketIsRefused_UsesTcp) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_Refused", kConnectMs, std::to_string(kSoonMs), false)), 0);
}

TEST_F(PreloadAlone, DISABLED_RefusedByTcpToo) {
  Peer peer;
  const sockaddr_in to = peer.listen(address.sin_port);
  ASSERT_EQ(to.sin_port, address.sin_port);
  ASSERT_NO_FATAL_FAILURE(begin_connecting(&peer, to));
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT, 5), 0);
  ASSERT_EQ(fcntl(client, F_SETFL, 0), 0);  // the call that begins TCP's attempt gets its error, too
  close(listener);
  peer.refuse();
  EXPECT_EQ(poll_one(client, POLLOUT, kSoonMs), POLLOUT | POLLERR | POLLHUP);
  EXPECT_EQ(wait_epoll(kSoonMs), "5:1c");
  int error = -1;
  socklen_t length = sizeof error;
  ASSERT_EQ(getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, ECONNREFUSED);
  ASSERT_EQ(getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, 0) << "told once";
  sockaddr_in name;
  length = sizeof name;
  EXPECT_EQ(error_of(getpeername(client, as_out(&name), &length)), ENOTCONN);
  // The socket is as good as before.
  Preload::SetUp();
  EXPECT_EQ(error_of(connect(client, as_sockaddr(address), sizeof address)), 0);
  EXPECT_TRUE(connected_by_tcp(client));
  EXPECT_EQ(poll_one(client, POLLOUT, 0), POLLOUT);
  EXPECT_EQ(wait_epoll(0), "5:4");
}

TEST(PreloadOwnProcess, Connect_RsocketAndTcpAreRefused_IsRefused) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_RefusedByTcpToo", kConnectMs, std::to_string(kSoonMs), false)), 0);
}

TEST_F(PreloadAlone, DISABLED_ShutdownWhileItConnects) {
  Peer peer;
  const sockaddr_in to = peer.listen(address.sin_port);
  ASSERT_EQ(to.sin_port, address.sin_port);
  ASSERT_NO_FATAL_FAILURE(begin_connecting(&peer, to));
  EXPECT_EQ(error_of(shutdown(client, SHUT_RDWR)), 0);
  EXPECT_EQ(poll_one(client, POLLOUT, 0), POLLOUT | POLLERR | POLLHUP);
  EXPECT_FALSE(connected_by_tcp(client));
  EXPECT_EQ(error_of(connect(client, as_sockaddr(to), sizeof to)), ECONNRESET);
}

TEST(PreloadOwnProcess, Shutdown_WhileItConnects_EndsTheConnect) {
  EXPECT_EQ(
      end_of(start_case("PreloadAlone.DISABLED_ShutdownWhileItConnects", kConnectMs, std::to_string(600'000), false)),
      0);
}

TEST_F(PreloadAlone, DISABLED_NoAnswerInPoll) {
  Peer peer;
  ASSERT_EQ(peer.listen(address.sin_port).sin_port, address.sin_port);
  client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  ASSERT_EQ(error_of(connect(client, as_sockaddr(address), sizeof address)), EINPROGRESS);
  EXPECT_FALSE(connected_by_tcp(client));
  const Woken woken;
  EXPECT_EQ(poll_one(client, POLLOUT, kSoonMs), POLLOUT);
  EXPECT_TRUE(connected_by_tcp(client));
}

TEST_F(PreloadAlone, DISABLED_NoAnswerInEpoll) {
  Peer peer;
  ASSERT_EQ(peer.listen(address.sin_port).sin_port, address.sin_port);
  make_epoll();
  client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, client, EPOLLOUT, 5), 0);
  ASSERT_EQ(error_of(connect(client, as_sockaddr(address), sizeof address)), EINPROGRESS);
  EXPECT_FALSE(connected_by_tcp(client));
  const Woken woken;
  EXPECT_EQ(wait_epoll(kSoonMs), "5:4");
  EXPECT_TRUE(connected_by_tcp(client));
}

TEST_F(PreloadAlone, DISABLED_NoAnswerInConnect) {
  Peer peer;
  ASSERT_EQ(peer.listen(address.sin_port).sin_port, address.sin_port);
  client = socket(AF_INET, SOCK_STREAM, 0);
  const Woken woken;
  EXPECT_EQ(connect(client, as_sockaddr(address), sizeof address), 0);
  EXPECT_TRUE(connected_by_tcp(client));
}

TEST(PreloadOwnProcess, Connect_TimeLimitPassed_UsesTcp) {
  for (const char* place : {"InPoll", "InEpoll", "InConnect"}) {
    const std::string name = std::string("PreloadAlone.DISABLED_NoAnswer") + place;
    EXPECT_EQ(end_of(start_case(name.c_str(), kConnectMs, "40", false)), 0) << place;
  }
}

TEST_F(PreloadAlone, DISABLED_NoDescriptorsForASet) {
  make_pair();               // all that the process opens once is open
  std::vector<int> fillers;  // of the numbers below the highest
  const int highest = *descriptors().rbegin();
  while (fillers.empty() || fillers.back() < highest) {
    fillers.push_back(eventfd(0, 0));
    ASSERT_GE(fillers.back(), 0);
  }
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  rlim_t free = 16;
  for (bool by_rsocket = true; by_rsocket; --free) {
    make_epoll();
    const int late = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(control(EPOLL_CTL_ADD, late, EPOLLOUT, 5), 0);
    const rlimit few{static_cast<rlim_t>(late) + 1 + free, files.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const int error = error_of(connect(late, as_sockaddr(address), sizeof address));
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
    EXPECT_EQ(error, 0) << free;
    by_rsocket = !connected_by_tcp(late);
    // The listener, of this process too, may have had no descriptor for it: then it is told of as ended.
    EXPECT_EQ(wait_epoll(kSoonMs).substr(0, 2), "5:") << free << (by_rsocket ? ", by an rsocket" : ", by TCP");
    for (const int fd : {late, epoll}) close(fd);
    epoll = -1;
  }
  EXPECT_LT(free, 15u);  // at first there were enough
  for (const int fd : fillers) close(fd);
}

/// Alone: an attempt that fails makes all of the host's peers ones of TCP for a while.
TEST(PreloadOwnProcess, Epoll_NoDescriptorForAMemberThatConnects_StillReportsIt) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_NoDescriptorsForASet", kConnectMs, "5000", false)), 0);
}

namespace {

class PreloadWithoutSettings : public PreloadEdges {
 protected:
  void SetUp() override {
    ASSERT_EQ(unsetenv(kConfig), 0);
    PreloadEdges::SetUp();
  }
};

}  // namespace

TEST_F(PreloadWithoutSettings, DISABLED_Connect) {
  EXPECT_EQ(poll_one(listener, POLLIN, 0), 0);  // from here on it would have an rsocket
  client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(client, as_sockaddr(address), sizeof address), 0) << std::strerror(errno);
  EXPECT_TRUE(connected_by_tcp(client));
}

TEST(PreloadOwnProcess, Settings_DroppedByTheProgramBeforeItsFirstSocket_StillHold) {
  // A file without rules: no socket becomes an rsocket.
  EXPECT_EQ(end_of(start_case("PreloadWithoutSettings.DISABLED_Connect", kConfig, "/dev/null", false)), 0);
}

TEST(PreloadMisconfigured, DISABLED_Calls) {
  const int tcp = socket(AF_INET, SOCK_STREAM, 0);
  const int udp = socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(9);
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error_of(connect(tcp, as_sockaddr(to), sizeof to)), EINVAL);
    EXPECT_EQ(error_of(listen(tcp, 1)), EINVAL);
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.rfind("nupa: sockets: NUPA_SOCKETS_", 0), 0u) << text;
  EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
  EXPECT_EQ(connect(udp, as_sockaddr(to), sizeof to), 0) << "not a TCP socket";
  close(tcp);
  close(udp);
}

TEST(PreloadOwnProcess, WrongSetting_FailsConnectAndListenOfTcp) {
  for (const auto& [name, value] :
       {std::pair{kConfig, "/nonexistent"}, {kConfig, "/"}, {kConnectMs, "0"}, {kConnectMs, "1s"}})
    EXPECT_EQ(end_of(start_case("PreloadMisconfigured.DISABLED_Calls", name, value, false)), 0) << name << "=" << value;
}

TEST_F(PreloadAlone, DISABLED_Numbers) {
  constexpr int kPairs = 16;
  // A client's port is held by one more descriptor, and the library has some of its own.
  constexpr int kMost = 3 * kPairs + 20;
  std::vector<int> fds;
  for (int i = 0; i < kPairs; ++i) {
    make_pair();
    fds.insert(fds.end(), {client, server});
  }
  EXPECT_LT(*std::max_element(fds.begin(), fds.end()), listener + kMost);
  for (const int fd : fds) close(fd);
  client = server = -1;
}

TEST(PreloadOwnProcess, Connections_DescriptorsOfTheLibrary_HaveHighNumbers) {
  EXPECT_EQ(end_of(start_case("PreloadAlone.DISABLED_Numbers", kConnectMs, std::to_string(kSoonMs), false)), 0);
}
