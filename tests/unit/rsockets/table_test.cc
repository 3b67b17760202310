// SPDX-License-Identifier: Apache-2.0
// The table from descriptors to rsockets: leases, and the destruction of an rsocket.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <thread>
#include <vector>

#include "rsockets/descriptor_table.h"
#include "../../support/soon.h"

using namespace nupa::rsockets;

namespace {

std::atomic<int> alive{0};

class Fake final : public Socket {
 public:
  Fake() : Socket(AF_INET, SOCK_STREAM), fd_(eventfd(0, EFD_NONBLOCK)) { ++alive; }
  ~Fake() override {
    ::close(fd_);
    --alive;
  }
  int fd() const override { return fd_; }
  int bind(const sockaddr*, socklen_t) override { return 0; }
  int listen(int) override { return 0; }
  int accept(Socket**) override { return 0; }
  int connect(const sockaddr*, socklen_t) override { return 0; }
  int shutdown(int) override { return 0; }
  void close() override {
    closed = true;
    observers().notify();
  }
  ssize_t send(Pieces, int, const sockaddr*, socklen_t) override { return 0; }
  ssize_t receive(Pieces, int, sockaddr*, socklen_t*) override {
    return wait_until(Deadline::in_ms(10'000), [this] { return closed.load() || readable.load(); });
  }
  int local_name(sockaddr*, socklen_t*) override { return 0; }
  int peer_name(sockaddr*, socklen_t*) override { return 0; }
  int set_option(int, int, const void*, socklen_t) override { return 0; }
  int get_option(int, int, void*, socklen_t*) override { return 0; }
  size_t readable_bytes() override { return 0; }
  short ready(short) override { return 0; }
  void arm(std::vector<pollfd>*) override {}
  void wake(int) override {}

  std::atomic<bool> closed{false};
  std::atomic<bool> readable{false};

 private:
  int fd_;
};

}  // namespace

TEST(RsocketsTable, Lease_OpenDescriptor_GivesItsSocket) {
  auto& table = DescriptorTable::instance();
  auto owner = std::make_unique<Fake>();
  Fake* fake = owner.get();
  const int fd = fake->fd();
  EXPECT_FALSE(table.lease(fd, Use::kOther));
  ASSERT_EQ(table.add(std::move(owner)), 0);
  EXPECT_TRUE(table.contains(fd));
  EXPECT_EQ(table.lease(fd, Use::kSend).get(), fake);
  EXPECT_FALSE(table.lease(fd + 1, Use::kSend));
  EXPECT_EQ(table.close(fd), 0);
  EXPECT_FALSE(table.contains(fd));
  EXPECT_EQ(table.close(fd), -EBADF);
  EXPECT_EQ(alive, 0);
}

TEST(RsocketsTable, Lease_NumberOutOfRange_Fails) {
  auto& table = DescriptorTable::instance();
  EXPECT_FALSE(table.lease(-1, Use::kOther));
  EXPECT_FALSE(table.lease(INT32_MAX, Use::kOther));
  EXPECT_EQ(table.close(-1), -EBADF);
}

TEST(RsocketsTable, Close_CallInside_WaitsForIt) {
  auto& table = DescriptorTable::instance();
  auto owner = std::make_unique<Fake>();
  const int fd = owner->fd();
  ASSERT_EQ(table.add(std::move(owner)), 0);
  std::atomic<bool> inside{false};
  std::thread reader([&] {
    const auto lease = table.lease(fd, Use::kReceive);
    ASSERT_TRUE(lease);
    inside = true;
    EXPECT_EQ(lease->receive({nullptr, 0}, 0, nullptr, nullptr), 0);
    EXPECT_EQ(alive, 1);
  });
  while (!inside) std::this_thread::yield();
  EXPECT_EQ(table.close(fd), 0);
  EXPECT_EQ(alive, 0);
  reader.join();
}

TEST(RsocketsTable, Close_InheritedRsocketInUse_ClosesOnlyTheChildsCopy) {
  auto& table = DescriptorTable::instance();
  auto owner = std::make_unique<Fake>();
  Fake* fake = owner.get();
  const int fd = fake->fd();
  ASSERT_EQ(table.add(std::move(owner)), 0);
  std::promise<void> inside, forked;
  std::thread reader([&] {
    const auto lease = table.lease(fd, Use::kReceive);
    inside.set_value();
    forked.get_future().wait();
  });
  inside.get_future().wait();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const bool closed = table.close(fd) == 0 && !fake->closed && alive == 1 && fcntl(fd, F_GETFD) == -1;
    // A new one with the same number: no thread is using it.
    auto own = std::make_unique<Fake>();
    const bool again = own->fd() == fd && table.add(std::move(own)) == 0 && table.close(fd) == 0 && alive == 1;
    _exit(closed ? again ? 0 : 1 : 2);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  forked.set_value();
  reader.join();
  EXPECT_EQ(table.close(fd), 0);
  EXPECT_EQ(alive, 0);
}

TEST(RsocketsTable, Notify_SleepingReceive_Wakes) {
  auto& table = DescriptorTable::instance();
  auto owner = std::make_unique<Fake>();
  Fake* fake = owner.get();
  const int fd = fake->fd();
  ASSERT_EQ(table.add(std::move(owner)), 0);
  std::atomic<pid_t> thread{0};
  std::thread reader([&] {
    thread = gettid();
    const auto lease = table.lease(fd, Use::kReceive);
    EXPECT_EQ(lease->receive({nullptr, 0}, 0, nullptr, nullptr), 0);
  });
  EXPECT_TRUE(nupa::test::soon([&] { return thread != 0 && nupa::test::stands_still(thread); }));
  fake->readable = true;
  fake->observers().notify();
  reader.join();
  EXPECT_EQ(table.close(fd), 0);
}

TEST(RsocketsTable, Close_ThreadsLeaseMeanwhile_FindTheSocketOrNone) {
  auto& table = DescriptorTable::instance();
  std::atomic<bool> stop{false};
  std::atomic<int> number{-1};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        const auto lease = table.lease(number, Use::kSend);
        if (lease) {
          EXPECT_GE(lease->fd(), 0);
        }
      }
    });
  }
  for (int i = 0; i < 2000; ++i) {
    auto owner = std::make_unique<Fake>();
    const int fd = owner->fd();
    ASSERT_EQ(table.add(std::move(owner)), 0);
    number = fd;
    EXPECT_EQ(table.close(fd), 0);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(alive, 0);
}
