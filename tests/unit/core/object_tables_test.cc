// SPDX-License-Identifier: Apache-2.0
#include "core/object_tables.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <thread>

#include "../host/fixture.h"
#include "core/xrc_users.h"

namespace nupa::core {
namespace {

struct Thing {};

TEST(CoreObjectTables, FirstNumbers_OfEachTable_AreNotReservedOnes) {
  ObjectTables tables;
  EXPECT_EQ(tables.qps().indices().take(), -1) << "without a slot";
  tables.qps().prepare(1);
  tables.qps().add_slot(1);
  const int64_t first = tables.qps().indices().take();
  ASSERT_EQ(first, 0);
  EXPECT_EQ(tables.qps().number_of(0), 0x1000u) << "0 and 1 are management's";
  EXPECT_EQ(tables.cqs().numbers().take(), 1);
  EXPECT_EQ(tables.srqs().numbers().take(), 1);
  EXPECT_EQ(tables.mr_numbers().take(), 1);
}

TEST(CoreObjectTables, Take_UntilATableIsFull_GivesAsManyNumbersAsTheSegmentHolds) {
  ObjectTables tables;
  for (uint32_t slot = 1; slot <= shm::kMaxBanks; ++slot) {
    tables.qps().prepare(slot);
    tables.qps().add_slot(slot);
  }
  const auto last_of = [](IndexPool& numbers) {
    int64_t last = -1;
    for (int64_t taken = numbers.take(); taken >= 0; taken = numbers.take()) last = taken;
    return last;
  };
  EXPECT_EQ(last_of(tables.qps().indices()), shm::kMaxQp - 1);
  EXPECT_EQ(last_of(tables.cqs().numbers()), shm::kMaxCq - 1);
  EXPECT_EQ(last_of(tables.srqs().numbers()), shm::kMaxSrq - 1);
  EXPECT_EQ(last_of(tables.mr_numbers()), shm::kMaxMr - 1);
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

TEST(CoreObjectTables, QueuePair_BetweenEnterAndLeave_IsFoundByItsNumberAlone) {
  std::mutex mutex;
  QpTable table(mutex);
  for (const uint32_t slot : {7u, 5u}) {
    table.prepare(slot);
    table.add_slot(slot);
  }
  constexpr uint32_t kIndex = shm::kSlotQp + 3;  // the second bank's fourth
  constexpr uint32_t kNumber = 0x5003;
  EXPECT_EQ(table.number_of(kIndex), kNumber);
  alignas(64) std::byte memory[128]{};
  auto& first = reinterpret_cast<Qp&>(memory[0]);  // neither is looked into
  auto& second = reinterpret_cast<Qp&>(memory[64]);
  table.enter(first, 3);
  table.enter(second, kIndex);
  EXPECT_EQ(table.find(kNumber), &second);
  EXPECT_EQ(table.at(kIndex), &second);
  EXPECT_EQ(table.find(0x7003), &first);
  EXPECT_EQ(table.find(0x6003), nullptr) << "the slot is another process's";
  EXPECT_EQ(table.at(shm::kMaxQp), nullptr) << "an index that a peer wrote";
  EXPECT_EQ(table.count(), 2u);
  uint32_t visited = 0;
  table.each([&](Qp&) { ++visited; });
  EXPECT_EQ(visited, 2u);
  table.leave(kIndex);
  EXPECT_EQ(table.find(kNumber), nullptr);
  EXPECT_EQ(table.find(0x7003), &first);
  EXPECT_EQ(table.count(), 1u);
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
  const host::test::Folder folder;
  // Two processes, as far as the directory is concerned.
  const auto here = host::RuntimeDir::open();
  const auto there = host::RuntimeDir::open();
  ASSERT_TRUE(here && there);
  XrcUsers users, others;
  const auto error_of = [](const Result<void>& added) { return added ? 0 : added.error().code(); };
  EXPECT_EQ(error_of(users.add(**here, 7, true)), 0);
  EXPECT_EQ(error_of(users.add(**here, 7, true)), EEXIST);
  EXPECT_EQ(error_of(users.add(**here, 7, false)), 0);
  users.drop(**here, 7);
  const auto refused = others.add(**there, 7, true);
  ASSERT_EQ(error_of(refused), EEXIST) << "one handle is left";
  EXPECT_STREQ(refused.error().what(), "the XRC domain exists already");
  EXPECT_EQ(error_of(others.add(**there, 8, true)), 0);
  users.drop(**here, 7);
  EXPECT_EQ(error_of(others.add(**there, 7, true)), 0);
  EXPECT_EQ(error_of(users.add(**here, 7, false)), 0) << "not alone";
  // Private domains of two processes have nothing to do with each other.
  for (const auto& [process, dir] : {std::pair(&users, &*here), std::pair(&others, &*there)})
    EXPECT_EQ(error_of(process->add(**dir, XrcUsers::kPrivate | 7, true)), 0);
}

}  // namespace
}  // namespace nupa::core
