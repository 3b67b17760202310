// SPDX-License-Identifier: Apache-2.0
#include "progress/descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "base/unique_fd.h"
#include "progress/waiter.h"
#include "alarms.h"

namespace nupa::progress {
namespace {

constexpr int64_t kShortNs = 20'000'000;

class ProgressDescriptors : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(0, pipe2(ends, O_CLOEXEC | O_NONBLOCK));
    read_.reset(ends[0]);
    write_.reset(ends[1]);
  }
  void put() { ASSERT_EQ(1, ::write(write_.get(), "x", 1)); }
  void fill() {
    const char block[4096] = {};
    while (::write(write_.get(), block, sizeof block) > 0) {
    }
  }

  base::UniqueFd read_;
  base::UniqueFd write_;
};

TEST_F(ProgressDescriptors, WaitReadable_NothingArrives_IsLateAtTheDeadline) {
  const Deadline deadline = Deadline::in_ns(kShortNs);
  const auto waited = wait_readable(read_.get(), deadline);
  ASSERT_FALSE(waited);
  EXPECT_EQ(ETIMEDOUT, waited.error().code());
  EXPECT_TRUE(deadline.passed());
}

TEST_F(ProgressDescriptors, WaitReadable_SignalsWhileWaiting_KeepsTheDeadline) {
  // A profiler's timer: each of its signals once made the wait begin again.
  const test::Alarms alarms;
  const Deadline deadline = Deadline::in_ns(kShortNs);
  const auto waited = wait_readable(read_.get(), deadline);
  ASSERT_FALSE(waited);
  EXPECT_EQ(ETIMEDOUT, waited.error().code());
  EXPECT_TRUE(deadline.passed());
}

TEST_F(ProgressDescriptors, WaitReadable_DataArrives_Returns) {
  std::thread other([this] {
    sleep_for(5 * kNsPerMs);  // sleep: the other thread waits by then; if it does not, it returns at once
    put();
  });
  EXPECT_TRUE(wait_readable(read_.get(), Deadline::never()));
  other.join();
}

TEST_F(ProgressDescriptors, WaitReadable_DeadlinePassed_StillTests) {
  put();
  EXPECT_TRUE(wait_readable(read_.get(), Deadline::at(0)));
}

TEST_F(ProgressDescriptors, WaitWritable_UntilThereIsRoom_Waits) {
  EXPECT_TRUE(wait_writable(write_.get(), Deadline::at(0)));
  fill();
  const auto waited = wait_writable(write_.get(), Deadline::in_ns(kNsPerMs));
  ASSERT_FALSE(waited);
  EXPECT_EQ(ETIMEDOUT, waited.error().code());
}

TEST_F(ProgressDescriptors, IsReadable_TakesNothing) {
  EXPECT_FALSE(is_readable(read_.get()));
  put();
  EXPECT_TRUE(is_readable(read_.get()));
}

TEST_F(ProgressDescriptors, WaitDescriptors_ASignal_ReturnsWhereItIsWanted) {
  const test::Alarms alarms;
  pollfd one{read_.get(), POLLIN, 0};
  const auto ready = wait_descriptors({&one, 1}, Deadline::never(), Signals::kReturn);
  ASSERT_FALSE(ready);
  EXPECT_EQ(EINTR, ready.error().code());
}

TEST_F(ProgressDescriptors, WaitDescriptors_WithAMask_BlocksItsSignals) {
  const test::Alarms alarms;
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGALRM);
  pollfd one{read_.get(), POLLIN, 0};
  const auto ready = wait_descriptors({&one, 1}, Deadline::in_ns(kShortNs), Signals::kReturn, &mask);
  ASSERT_TRUE(ready);
  EXPECT_EQ(0, *ready);
}

TEST_F(ProgressDescriptors, WaitDescriptors_Several_CountsTheReady) {
  put();
  pollfd both[] = {{read_.get(), POLLIN, 0}, {write_.get(), POLLOUT, 0}};
  const auto ready = wait_descriptors(both, Deadline::never(), Signals::kReturn);
  ASSERT_TRUE(ready);
  EXPECT_EQ(2, *ready);
}

}  // namespace
}  // namespace nupa::progress
