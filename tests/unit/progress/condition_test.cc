// SPDX-License-Identifier: Apache-2.0
#include "progress/condition.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace nupa::progress {
namespace {

TEST(ProgressCondition, Wait_NotNotified_IsLateAtTheDeadline) {
  std::mutex mutex;
  Condition condition;
  std::unique_lock lock(mutex);
  const Deadline deadline = Deadline::in_ns(5'000'000);
  EXPECT_FALSE(condition.wait(
      lock, [] { return false; }, deadline));
  EXPECT_TRUE(deadline.passed());
  EXPECT_TRUE(lock.owns_lock());
}

TEST(ProgressCondition, Wait_ConditionHoldsAlready_DoesNotSleep) {
  std::mutex mutex;
  Condition condition;
  std::unique_lock lock(mutex);
  condition.wait(lock, [] { return true; });
  EXPECT_TRUE(condition.wait(
      lock, [] { return true; }, Deadline::at(0)));
}

TEST(ProgressCondition, Wait_Notified_TestsTheConditionAgain) {
  for (const bool all : {true, false}) {
    for (const Deadline deadline : {Deadline::never(), Deadline::in_ms(60'000)}) {
      std::mutex mutex;
      Condition condition;
      bool done = false;
      std::thread other([&] {
        {
          std::lock_guard lock(mutex);
          done = true;
        }
        all ? condition.notify_all() : condition.notify_one();
      });
      std::unique_lock lock(mutex);
      EXPECT_TRUE(condition.wait(
          lock, [&] { return done; }, deadline));
      lock.unlock();
      other.join();
    }
  }
}

TEST(ProgressCondition, RenewInChild_AThreadOfTheParentSleeps_CanBeWaitedOn) {
  std::mutex mutex;
  Condition condition;
  bool sleeps = false;
  bool ends = false;
  std::thread sleeper([&] {
    std::unique_lock lock(mutex);
    sleeps = true;
    condition.wait(lock, [&] { return ends; });
  });
  for (bool asleep = false; !asleep;) {
    std::lock_guard lock(mutex);
    asleep = sleeps;
  }
  std::unique_lock lock(mutex);  // the sleeper sleeps by now
  const pid_t child = fork();
  if (child == 0) {
    condition.renew_in_child();
    const bool late = !condition.wait(
        lock, [] { return false; }, Deadline::in_ns(1'000'000));
    condition.notify_all();
    _exit(late ? 0 : 1);
  }
  ends = true;
  lock.unlock();
  condition.notify_all();
  sleeper.join();
  int status = 1;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
}

}  // namespace
}  // namespace nupa::progress
