// SPDX-License-Identifier: Apache-2.0
/// Waiting for sockets of both kinds: select(), poll(), time limits, signals.
#include <fcntl.h>

#include <algorithm>
#include <functional>

#include "api_peer.h"
#include "preload_edges.h"
#include "preload_support.h"

using nupa::preload_test::error_of;
using nupa::preload_test::PreloadEdges;

TEST_F(PreloadEdges, Select_EndOfAPlainDescriptor_IsReadable) {
  make_pair();
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  close(pipe_ends[1]);
  fd_set read_set;
  FD_ZERO(&read_set);
  FD_SET(server, &read_set);
  FD_SET(pipe_ends[0], &read_set);
  timeval now{};
  const int most = std::max(server, pipe_ends[0]) + 1;
  EXPECT_EQ(select(most, &read_set, nullptr, nullptr, &now), 1);
  EXPECT_TRUE(FD_ISSET(pipe_ends[0], &read_set));
  EXPECT_FALSE(FD_ISSET(server, &read_set));
  close(pipe_ends[0]);
  FD_SET(server, &read_set);
  EXPECT_EQ(error_of(select(most, &read_set, nullptr, nullptr, &now)), EBADF);
  EXPECT_TRUE(FD_ISSET(server, &read_set)) << "a select() that fails leaves its sets";
}

TEST_F(PreloadEdges, Waits_AreNoShorterThanTheirTimeout) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 7), 0);
  constexpr long kUs = 6000;
  const timespec time{0, kUs * 1000};
  const auto check = [&](const char* name, const std::function<int()>& wait) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(wait(), 0) << name;
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::microseconds(kUs)) << name;
  };
  pollfd entry{server, POLLIN, 0};
  fd_set read_set;
  const auto set = [&] {
    FD_ZERO(&read_set);
    FD_SET(server, &read_set);
    return &read_set;
  };
  epoll_event event;
  check("poll", [&] { return poll(&entry, 1, kUs / 1000); });
  check("ppoll", [&] { return ppoll(&entry, 1, &time, nullptr); });
  check("select", [&] {
    timeval limit{0, kUs};
    return select(server + 1, set(), nullptr, nullptr, &limit);
  });
  check("pselect", [&] { return pselect(server + 1, set(), nullptr, nullptr, &time, nullptr); });
  check("epoll_wait", [&] { return epoll_wait(epoll, &event, 1, kUs / 1000); });
  check("epoll_pwait2", [&] { return epoll_pwait2(epoll, &event, 1, &time, nullptr); });
  EXPECT_FALSE(FD_ISSET(server, &read_set));
}

TEST_F(PreloadEdges, Waits_UnblockedSignal_FailWithEintr) {
  make_pair();
  make_epoll();
  ASSERT_EQ(control(EPOLL_CTL_ADD, server, EPOLLIN, 7), 0);
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  sigset_t blocked, open;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &blocked, &open), 0);
  sigdelset(&open, SIGUSR1);
  const timespec time{1, 0};
  pollfd entry{server, POLLIN, 0};
  fd_set read_set;
  FD_ZERO(&read_set);
  FD_SET(server, &read_set);
  epoll_event event;
  raise(SIGUSR1);
  EXPECT_EQ(error_of(ppoll(&entry, 1, &time, &open)), EINTR);
  raise(SIGUSR1);
  EXPECT_EQ(error_of(pselect(server + 1, &read_set, nullptr, nullptr, &time, &open)), EINTR);
  raise(SIGUSR1);
  EXPECT_EQ(error_of(epoll_pwait(epoll, &event, 1, 1000, &open)), EINTR);
  raise(SIGUSR1);
  EXPECT_EQ(error_of(epoll_pwait2(epoll, &event, 1, &time, &open)), EINTR);
  raise(SIGUSR1);
  EXPECT_EQ(epoll_wait(epoll, &event, 1, 1), 0) << "it stays blocked";
  ASSERT_EQ(pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr), 0);
  sigaction(SIGUSR1, &before, nullptr);
}
