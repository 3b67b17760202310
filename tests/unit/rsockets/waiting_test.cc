// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "rsockets/socket.h"
#include "rsockets/waiter.h"

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
  void wake(int) override { ++wakes_; }

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

TEST(RsocketsWaiting, WaitUntil_DescriptorStaysReadable_EndsAtTheDeadline) {
  WaitingSocket socket;
  socket.make_readable();
  int looks = 0;
  // So many looks that only a wait without a deadline makes them.
  const int rc = socket.wait(Deadline::in_ms(5), [&] { return ++looks == 10'000'000; });
  EXPECT_EQ(rc, -EAGAIN);
  EXPECT_GT(socket.wakes(), 0);
}

TEST(RsocketsWaiting, WaitUntil_ConditionHoldsAtTheDeadline_IsSeen) {
  WaitingSocket socket;
  socket.make_readable();
  const int rc = socket.wait(Deadline::in_ms(0), [&] { return socket.wakes() != 0; });
  EXPECT_EQ(rc, 0);
}

TEST(RsocketsWaiting, WaitUntil_Notified_TestsTheConditionAgain) {
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

}  // namespace
}  // namespace nupa::rsockets
