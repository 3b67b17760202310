// SPDX-License-Identifier: Apache-2.0
#include "progress/waiter.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "progress/spin_lock.h"
#include "alarms.h"

namespace nupa::progress {
namespace {

constexpr int64_t kSoonNs = 20'000'000;

using test::Alarms;

TEST(ProgressWaiter, WaitFor_SignalsWhileWaiting_KeepsTheDeadline) {
  const Alarms alarms;
  const Deadline deadline = Deadline::in_ns(kSoonNs);
  EXPECT_FALSE(wait_for([] { return false; }, WaitPolicy{0, 0, kSoonNs}, deadline));
  EXPECT_TRUE(deadline.passed());
}

TEST(ProgressWaiter, SleepFor_SignalsWhileSleeping_SleepsForTheWholeTime) {
  const Alarms alarms;
  const int64_t begun = now_ns();
  sleep_for(kSoonNs);  // sleep: the call is what is tested
  EXPECT_GE(now_ns(), begun + kSoonNs);
  while (Alarms::count == 0) sleep_for(kNsPerMs);
}

TEST(ProgressWaiter, SleepFor_NoTime_Returns) {
  sleep_for(0);  // sleep: the calls are what is tested
  sleep_for(-1);
}

TEST(ProgressWaiter, WaitFor_WhatHoldsAlready_AsksOnce) {
  int asked = 0;
  EXPECT_TRUE(wait_for([&] { return ++asked > 0; }, kLockPolicy, Deadline::at(0)));
  EXPECT_EQ(1, asked);
}

TEST(ProgressWaiter, WaitFor_WhatHoldsAtTheDeadline_IsSeen) {
  int asked = 0;
  EXPECT_TRUE(wait_for([&] { return ++asked == 2; }, kLockPolicy, Deadline::at(0)));
}

TEST(ProgressWaiter, WaitFor_DeadlinePassed_GivesUp) {
  int asked = 0;
  EXPECT_FALSE(wait_for([&] { return ++asked == 3; }, kLockPolicy, Deadline::at(0)));
}

TEST(ProgressWaiter, WaitFor_AnotherThread_SeesWhatItDid) {
  for (const WaitPolicy& policy : {kLockPolicy, kHolderPolicy, kPeerPolicy}) {
    std::atomic<bool> done{false};
    std::thread other([&] {
      sleep_for(5 * kNsPerMs);  // sleep: the other thread waits by then; if it does not, it returns at once
      done = true;
    });
    EXPECT_TRUE(wait_for([&] { return done.load(); }, policy, Deadline::never()));
    other.join();
  }
}

/// How often this thread has given its core away by itself.
int64_t naps() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

/// Naps that are counted by the clock: a policy without yields naps at the first turn behind its spins.
TEST(ProgressWaiter, Turns_SpinFirst_ThenNap) {
  constexpr WaitPolicy policy{3, 0, kSoonNs / 10};
  Waiter waiter(policy);
  const int64_t begun = now_ns();
  for (int i = 0; i < 3; ++i) waiter.turn();
  waiter.turn();
  EXPECT_GE(now_ns(), begun + kSoonNs / 10);
  waiter.turn();
  EXPECT_GE(now_ns(), begun + 2 * kSoonNs / 10);
  const int64_t before = naps();
  for (int i = 0; i < 1'000; ++i) {
    waiter.reset();
    waiter.turn();
  }
  EXPECT_LT(naps() - before, 500) << "after reset() it spins";
}

TEST(ProgressSpinLock, FourThreads_HoldItOneAtATime) {
  SpinLock lock;
  EXPECT_TRUE(lock.try_lock());
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
  int count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 10'000; ++round) {
        std::lock_guard held(lock);
        count = count + 1;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(40'000, count);
  EXPECT_TRUE(lock.try_lock());
}

}  // namespace
}  // namespace nupa::progress
