// SPDX-License-Identifier: Apache-2.0
/// Listeners: the backlog, accepting threads and processes, and the options that connections inherit.
#include <netinet/tcp.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>

#include "../../support/sanitizers.h"
#include "api_edges.h"
#include "api_support.h"

using namespace nupa::rsockets_test;

TEST_F(RsocketsEdges, Listen_Again_KeepsWaitingConnections) {
  listen_now(1);
  client = connect_one();
  ASSERT_GE(client, 0);
  EXPECT_EQ(rlisten(listener, 20), 0);
  server = raccept(listener, nullptr, nullptr);
  EXPECT_GE(server, 0);
}

TEST_F(RsocketsEdges, Backlog_OfOne_HoldsSixteen) {
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

TEST_F(RsocketsEdges, Shutdown_OfAListener_RefusesConnections) {
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

TEST_F(RsocketsEdges, Accept_ListenerIsShutDown_Returns) {
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

TEST_F(RsocketsEdges, Close_OfAListenerThatAnotherThreadPolls_DoesNotWait) {
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

TEST_F(RsocketsEdges, Fork_OfAListeningProcess_ChildAcceptsWithItsOwnListener) {
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

TEST_F(RsocketsEdges, Accept_ReceiveTimeout_FailsWithEagain) {
  listen_now();
  const timeval limit{0, 10'000};
  ASSERT_EQ(rsetsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(error_of(raccept(listener, nullptr, nullptr)), EAGAIN);
}

TEST_F(RsocketsEdges, Poll_OfAListener_SleepsUntilAConnection) {
  listen_now();
  std::atomic<pid_t> thread{0};
  int events = 0;
  std::thread waiter([&] {
    thread = gettid();
    events = poll_one(listener, POLLIN, kSoonMs);
  });
  EXPECT_TRUE(await([&] { return thread != 0; }) && await_sleep(thread));
  client = connect_one();
  waiter.join();
  EXPECT_EQ(events, POLLIN);
  server = raccept(listener, nullptr, nullptr);
  ASSERT_GE(server, 0);
  EXPECT_EQ(poll_one(listener, POLLIN, 20), 0) << "nor does it wake for one that was accepted";
}

TEST_F(RsocketsEdges, Accept_ListenerIsNonBlocking_ConnectionBlocks) {
  listen_now();
  ASSERT_EQ(rfcntl(listener, F_SETFL, O_NONBLOCK), 0);
  client = connect_one();
  ASSERT_EQ(poll_one(listener, POLLIN, kSoonMs), POLLIN);
  server = raccept(listener, nullptr, nullptr);
  EXPECT_EQ(rfcntl(server, F_GETFL), O_RDWR);
}

TEST_F(RsocketsEdges, Accept_OptionsOfTheListener_AreTheConnections) {
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
