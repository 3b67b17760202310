// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "api/rsockets/socket.h"
#include "api/rsockets/waiter.h"

namespace nupa::rsockets {
namespace {

/// A socket of which only waiting is real: its one descriptor is readable for as long as the test says so.
class WaitingSocket final : public Socket {
 public:
  WaitingSocket() : Socket(AF_INET, SOCK_STREAM), fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~WaitingSocket() override { ::close(fd_); }

  template <class Test>
  int wait(const Deadline& deadline, Test test) {
    return wait_until(deadline, test);
  }
  void make_readable() { ASSERT_EQ(eventfd_write(fd_, 1), 0); }
  int wakes() const { return wakes_; }

  short ready(short) override { return 0; }
  void arm(std::vector<pollfd>* fds) override { fds->push_back({fd_, POLLIN, 0}); }
  void wake() override { ++wakes_; }

  int fd() const override { return fd_; }
  int bind(const sockaddr*, socklen_t) override { return -EOPNOTSUPP; }
  int listen(int) override { return -EOPNOTSUPP; }
  int accept(Socket**) override { return -EOPNOTSUPP; }
  int connect(const sockaddr*, socklen_t) override { return -EOPNOTSUPP; }
  int shutdown(int) override { return -EOPNOTSUPP; }
  void close() override {}
  ssize_t send(Pieces, int, const sockaddr*, socklen_t) override { return -EOPNOTSUPP; }
  ssize_t receive(Pieces, int, sockaddr*, socklen_t*) override { return -EOPNOTSUPP; }
  int local_name(sockaddr*, socklen_t*) override { return -EOPNOTSUPP; }
  int peer_name(sockaddr*, socklen_t*) override { return -EOPNOTSUPP; }
  int set_option(int, int, const void*, socklen_t) override { return -EOPNOTSUPP; }
  int get_option(int, int, void*, socklen_t*) override { return -EOPNOTSUPP; }
  size_t readable_bytes() override { return 0; }

 private:
  const int fd_;
  int wakes_ = 0;
};

TEST(RsocketsWaiting, ADescriptorThatStaysReadableDoesNotHoldOffTheDeadline) {
  WaitingSocket socket;
  socket.make_readable();
  int looks = 0;
  // So many looks that only a wait without a deadline makes them.
  const int rc = socket.wait(Deadline::in_ms(5), [&] { return ++looks == 10'000'000; });
  EXPECT_EQ(rc, -EAGAIN);
  EXPECT_GT(socket.wakes(), 0);
}

TEST(RsocketsWaiting, WhatHoldsAtTheDeadlineIsSeenBeforeTheWaitIsGivenUp) {
  WaitingSocket socket;
  socket.make_readable();
  const int rc = socket.wait(Deadline::in_ms(0), [&] { return socket.wakes() != 0; });
  EXPECT_EQ(rc, 0);
}

TEST(RsocketsWaiting, ANotificationEndsTheSleepAndTheConditionIsTestedAgain) {
  WaitingSocket socket;
  std::atomic<bool> done{false};
  std::thread other([&] {
    done.store(true);
    socket.observers().notify();
  });
  EXPECT_EQ(socket.wait(Deadline::in_ms(60'000), [&] { return done.load(); }), 0);
  EXPECT_EQ(socket.wakes(), 0);
  other.join();
}

TEST(RsocketsWaiting, AChildDoesNotTakeItsParentsWakeUps) {
  ThreadWaiter& waiter = ThreadWaiter::mine();
  waiter.reset();
  waiter.changed();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ThreadWaiter::mine().reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  pollfd entry{waiter.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 1);
  waiter.reset();
}

/// Outlives the thread's other thread_local objects when it was made before them.
struct AtTheVeryEnd {
  ~AtTheVeryEnd() {
    if (polled == nullptr) return;
    pollfd entry{ThreadWaiter::mine().fd(), POLLIN, 0};
    *polled = poll(&entry, 1, 0);
  }
  int* polled = nullptr;
};

TEST(RsocketsWaiting, AThreadsWaiterCanBeSleptOnAfterTheThreadsDestructorsHaveRun) {
  int polled = -1;
  std::thread([&] {
    thread_local AtTheVeryEnd at_the_very_end;
    at_the_very_end.polled = &polled;
    ASSERT_GE(ThreadWaiter::mine().fd(), 0);
  }).join();
  EXPECT_EQ(polled, 0);  // 1: the descriptor is closed
}

TEST(RsocketsWaiting, Thread_ThatHasAWaiter_ClosesItsDescriptorAtItsEnd) {
  int fd = -1;
  std::thread([&] { fd = ThreadWaiter::mine().fd(); }).join();
  ASSERT_GE(fd, 0);
  EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "it is still open";
}

}  // namespace
}  // namespace nupa::rsockets
