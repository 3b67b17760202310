// SPDX-License-Identifier: Apache-2.0
#include "progress/file_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "progress/waiter.h"

namespace nupa::progress {
namespace {

class ProgressFileLock : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_GE(mkstemp(name_), 0); }
  void TearDown() override { unlink(name_); }
  base::UniqueFd open() { return base::UniqueFd(::open(name_, O_RDWR | O_CLOEXEC)); }

  char name_[32] = "/tmp/nupa-file-lock-XXXXXX";
};

TEST_F(ProgressFileLock, Lock_HeldByAnotherProcessesFile_IsLate) {
  const base::UniqueFd other = open();
  ASSERT_EQ(0, flock(other.get(), LOCK_EX));
  FileLock lock(open());
  const auto late = lock.lock(Deadline::in_ms(5));
  ASSERT_FALSE(late);
  EXPECT_EQ(EBUSY, late.error().code());
  ASSERT_EQ(0, flock(other.get(), LOCK_UN));
  ASSERT_TRUE(lock.lock(Deadline::in_ms(60'000)));
  EXPECT_EQ(-1, flock(other.get(), LOCK_EX | LOCK_NB));
  lock.unlock();
  EXPECT_EQ(0, flock(other.get(), LOCK_EX | LOCK_NB));
}

TEST_F(ProgressFileLock, Lock_HeldByAnotherThread_IsLate) {
  FileLock lock(open());
  ASSERT_TRUE(lock.lock(Deadline::at(0)));
  std::thread([&lock] { EXPECT_FALSE(lock.lock(Deadline::in_ms(5))); }).join();
  lock.unlock();
  std::thread([&lock] {
    EXPECT_TRUE(lock.lock(Deadline::in_ms(60'000)));
    lock.unlock();
  }).join();
}

TEST_F(ProgressFileLock, Child_OfAHolderThatDies_DoesNotHoldIt) {
  // The holder is a child of this process, and has one itself, which outlives it.
  int told[2];
  ASSERT_EQ(0, pipe2(told, O_CLOEXEC));
  const pid_t holder = fork();
  if (holder == 0) {
    FileLock lock(open());
    if (!lock.lock(Deadline::at(0))) _exit(1);
    if (fork() == 0) {
      const auto refused = lock.lock(Deadline::at(0));
      const pid_t seen = !refused && refused.error().code() == ENODEV ? getpid() : 0;
      if (write(told[1], &seen, sizeof seen) != sizeof seen) _exit(1);
    }
    sleep_for_ever();
  }
  pid_t child = 0;
  ASSERT_EQ(sizeof child, static_cast<size_t>(read(told[0], &child, sizeof child)));
  EXPECT_GT(child, 0) << "the lock is not the child's";
  ASSERT_EQ(0, kill(holder, SIGKILL));
  ASSERT_EQ(holder, waitpid(holder, nullptr, 0));
  FileLock lock(open());
  EXPECT_TRUE(lock.lock(Deadline::in_ms(5'000))) << "the child keeps it";
  if (child > 0) kill(child, SIGKILL);
}

TEST_F(ProgressFileLock, Destroyed_InAChild_ClosesNoDescriptorOfTheChild) {
  base::UniqueFd fd = open();
  const int number = fd.get();
  auto lock = std::make_unique<FileLock>(std::move(fd));
  const pid_t child = fork();
  if (child == 0) {
    if (fcntl(number, F_GETFD) != -1) _exit(1);
    const base::UniqueFd own(dup2(STDERR_FILENO, number));
    lock.reset();
    _exit(fcntl(number, F_GETFD) != -1 ? 0 : 2);
  }
  int status = 1;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
}

}  // namespace
}  // namespace nupa::progress
