// SPDX-License-Identifier: Apache-2.0
#include "core/object_tables.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "core/xrc_users.h"

namespace nupa::core {
namespace {

struct Thing {};

TEST(CoreObjectTables, FirstNumbers_LeaveOutZeroAndTheQueuePairsOfManagement) {
  ObjectTables tables;
  EXPECT_EQ(tables.qps().numbers().take(), 2);
  EXPECT_EQ(tables.cqs().numbers().take(), 1);
  EXPECT_EQ(tables.srqs().numbers().take(), 1);
  EXPECT_EQ(tables.mr_numbers().take(), 1);
}

TEST(CoreObjectTables, EachKind_HasTheNumbersThatTheSegmentHasPlacesFor) {
  ObjectTables tables;
  const auto last_of = [](IndexPool& numbers) {
    int64_t last = -1;
    for (int64_t taken = numbers.take(); taken >= 0; taken = numbers.take()) last = taken;
    return last;
  };
  EXPECT_EQ(last_of(tables.qps().numbers()), segment::kMaxQp - 1);
  EXPECT_EQ(last_of(tables.cqs().numbers()), segment::kMaxCq - 1);
  EXPECT_EQ(last_of(tables.srqs().numbers()), segment::kMaxSrq - 1);
  EXPECT_EQ(last_of(tables.mr_numbers()), segment::kMaxMr - 1);
}

TEST(CoreObjectTables, At_BetweenEnterAndLeave_IsTheObject) {
  std::mutex mutex;
  NumberedObjects<Thing> things(mutex, 1, 8);
  Thing thing;
  EXPECT_EQ(things.at(5), nullptr);
  things.enter(thing, 5);
  EXPECT_EQ(things.at(5), &thing);
  EXPECT_EQ(things.high_water(), 6u);
  things.leave(5);
  EXPECT_EQ(things.at(5), nullptr);
  EXPECT_EQ(things.high_water(), 6u);
}

TEST(CoreObjectTables, Leave_BesideAThreadThatWorksOnObjects_WaitsForIt) {
  std::mutex mutex;
  NumberedObjects<Thing> things(mutex, 1, 8);
  Thing thing;
  things.enter(thing, 5);
  std::atomic<bool> is_leaving{false};
  std::thread leaves;
  {
    std::lock_guard lock(mutex);
    leaves = std::thread([&] {
      is_leaving = true;
      things.leave(5);
    });
    while (!is_leaving) std::this_thread::yield();
    // It is about to wait. If it does not, it has time to leave.
    for (int turn = 0; turn < 10000 && things.at(5) != nullptr; ++turn) std::this_thread::yield();
    EXPECT_EQ(things.at(5), &thing);
  }
  leaves.join();
  EXPECT_EQ(things.at(5), nullptr);
}

TEST(CoreXrcUsers, Domain_IsOpenUntilItsLastHandleIsDropped) {
  XrcUsers users;
  EXPECT_FALSE(users.is_open(7));
  users.add(7);
  users.add(7);
  users.drop(7);
  EXPECT_TRUE(users.is_open(7));
  EXPECT_FALSE(users.is_open(8));
  users.drop(7);
  EXPECT_FALSE(users.is_open(7));
}

}  // namespace
}  // namespace nupa::core
