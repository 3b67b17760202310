// SPDX-License-Identifier: Apache-2.0
/// The end of streams: what both sides read, and what select() and poll() report.
#include <sys/select.h>

#include <atomic>

#include "api_edges.h"
#include "api_support.h"

using namespace nupa::rsockets_test;

// Ends, as both sides see them.

TEST_F(RsocketsEdges, ShutdownForWriting_ThePeerStillWrites) {
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

TEST_F(RsocketsEdges, ShutdownForReading_StillWrites) {
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

TEST_F(RsocketsEdges, Shutdown_BothEndsAtOnce_BothReadTheEnd) {
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

TEST_F(RsocketsEdges, Close_ThePeerReadsTheRestThenTheEnd) {
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

TEST_F(RsocketsEdges, Send_WaitsAndIsShutDown_Returns) {
  make_pair();
  fill(client, server);
  int error = 0;
  std::atomic<pid_t> thread{0};
  std::thread writer([&] {
    thread = gettid();
    error = write_error(client, 0);
  });
  EXPECT_TRUE(await([&] { return thread != 0; }) && await_sleep(thread));
  EXPECT_EQ(rshutdown(client, SHUT_WR), 0);
  writer.join();
  EXPECT_EQ(error, EPIPE);
  EXPECT_EQ(poll_one(client, POLLOUT, 0), POLLOUT) << "a write fails without waiting";
}

TEST_F(RsocketsEdges, Send_WaitsAndThePeerCloses_Returns) {
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

TEST_F(RsocketsEdges, Poll_CallsOfAnotherThreadOrThePeer_Returns) {
  make_pair();
  const auto woken_by = [&](short events, auto call) {
    std::atomic<pid_t> thread{0};
    int seen = 0;
    std::thread waiter([&] {
      thread = gettid();
      seen = poll_one(server, events, kSoonMs);
    });
    EXPECT_TRUE(await([&] { return thread != 0; }) && await_sleep(thread));
    call();
    waiter.join();
    return seen;
  };
  EXPECT_EQ(woken_by(POLLIN, [&] { EXPECT_EQ(rsend(client, "x", 1, 0), 1); }), POLLIN);
  EXPECT_EQ(read_error(server), 0);
  EXPECT_EQ(woken_by(POLLRDHUP, [&] { EXPECT_EQ(rshutdown(client, SHUT_WR), 0); }), POLLRDHUP);
  EXPECT_EQ(woken_by(0, [&] { EXPECT_EQ(rshutdown(server, SHUT_WR), 0); }), POLLHUP);
}

TEST_F(RsocketsEdges, ReadersAndPollers_OfOneStream_AllReturn) {
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

TEST_F(RsocketsEdges, PingPong_OfSleepers_MissesNoWakeUp) {
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

TEST_F(RsocketsEdges, Select_WrongArguments_AreRefused) {
  fd_set set;
  FD_ZERO(&set);
  timeval now{};
  EXPECT_EQ(error_of(rselect(-1, &set, nullptr, nullptr, &now)), EINVAL);
  EXPECT_EQ(error_of(rselect(FD_SETSIZE + 1, &set, nullptr, nullptr, &now)), EINVAL);
  FD_SET(FD_SETSIZE - 1, &set);
  EXPECT_EQ(error_of(rselect(FD_SETSIZE, &set, nullptr, nullptr, &now)), EBADF);
  EXPECT_EQ(rselect(0, nullptr, nullptr, nullptr, &now), 0);
}

TEST_F(RsocketsEdges, Select_EndOfStream_IsReadable) {
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

TEST_F(RsocketsEdges, Poll_SeveralPlainDescriptors_ReportsEach) {
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

TEST_F(RsocketsEdges, Poll_InvalidDescriptor_ReportsPollnval) {
  pollfd entries[] = {{kNoDescriptor, POLLIN, 0}, {listener, POLLIN, 0}, {-1, POLLIN, 7}};
  listen_now();
  EXPECT_EQ(rpoll(entries, 3, 0), 1);
  EXPECT_EQ(entries[0].revents, POLLNVAL);
  EXPECT_EQ(entries[1].revents, 0);
  EXPECT_EQ(entries[2].revents, 0);
}
