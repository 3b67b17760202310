// SPDX-License-Identifier: Apache-2.0
// Tests of the flow window that queue pairs share, and of its wait queue.
#include "transport/roce/port/flow_window.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "transport/roce/wire/wire.h"

namespace nupa::roce {
namespace {

constexpr uint64_t kSize = 1 << 20;
constexpr uint64_t kPacket = 4112;

/// The line only keeps their places.
QpReceiver& queue_pair(size_t number) {
  static std::array<uint64_t, 2 * FlowWindow::kMany> places;
  return *reinterpret_cast<QpReceiver*>(&places[number]);
}

/// Removes the head of the queue; null: the queue is empty.
QpReceiver* next(FlowWindow& window) {
  QpReceiver* const first = window.first();
  if (first != nullptr) {
    EXPECT_TRUE(window.leave_head(*first));
  }
  return first;
}

TEST(RoceFlowWindow, TakeAndGiveBack_NotMoreThanTheWindow) {
  FlowWindow window(kSize);
  EXPECT_EQ(kSize / 2, window.take(kSize / 2, kPacket));
  EXPECT_EQ(kSize / 2, window.take(kSize, kPacket)) << "not more than there is";
  EXPECT_EQ(0u, window.take(kSize, kPacket));
  window.give_back(kSize / 2);
  EXPECT_EQ(kSize / 2, window.take(kSize, kPacket));
}

TEST(RoceFlowWindow, Take_LessThanAQuantumIsLeft_GivesNothing) {
  FlowWindow window(kSize);
  window.take(kSize, kPacket);
  window.give_back(FlowWindow::kQuantumBytes - 1);
  EXPECT_FALSE(window.has_room());
  EXPECT_EQ(0u, window.take(100, kPacket));
  window.give_back(1);
  EXPECT_TRUE(window.has_room());
  EXPECT_EQ(100u, window.take(100, kPacket));
}

TEST(RoceFlowWindow, Quantum_IsAMultipleOf64KiBMessages) {
  for (const uint64_t turn : {FlowWindow::kQuantumBytes, FlowWindow::kLongQuantumBytes})
    EXPECT_EQ(0u, turn / kPacket % 16) << turn;
}

TEST(RoceFlowWindow, Quantum_ManyWaiters_IsLonger) {
  FlowWindow window(kSize);
  window.take(kSize, kPacket);
  window.give_back(FlowWindow::kQuantumBytes);
  for (size_t number = 1; number < FlowWindow::kMany; ++number) window.wait(queue_pair(number));
  EXPECT_EQ(FlowWindow::kQuantumBytes, window.quantum_bytes());
  EXPECT_TRUE(window.has_room());
  window.wait(queue_pair(FlowWindow::kMany));
  EXPECT_EQ(FlowWindow::kLongQuantumBytes, window.quantum_bytes());
  EXPECT_FALSE(window.has_room()) << "for one of them";
  window.give_back(kSize / 4 - FlowWindow::kQuantumBytes);
  EXPECT_TRUE(window.has_room()) << "a quarter of the window is enough";
}

TEST(RoceFlowWindow, Take_WindowSmallerThanAQuantum_GivesParts) {
  FlowWindow window(4 * kMaxPacketBytes);
  EXPECT_EQ(3 * kMaxPacketBytes, window.take(3 * kMaxPacketBytes, kPacket));
  EXPECT_TRUE(window.has_room());
  EXPECT_EQ(kMaxPacketBytes, window.take(kSize, kPacket));
  EXPECT_FALSE(window.has_room());
}

TEST(RoceFlowWindow, Take_SmallWindow_GivesNoPartsOfPackets) {
  FlowWindow window(2 * kMaxPacketBytes);
  EXPECT_EQ(kMaxPacketBytes + 1, window.take(kMaxPacketBytes + 1, kPacket));
  EXPECT_FALSE(window.has_room()) << "more than a quarter, and less than a packet";
  EXPECT_EQ(0u, window.take(100, kPacket));
}

TEST(RoceFlowWindow, LeaveHeadAndForget_RemoveTheQueuePair) {
  FlowWindow window(kSize);
  for (const size_t number : {1, 2, 3, 2}) window.wait(queue_pair(number));
  EXPECT_FALSE(window.leave_head(queue_pair(2)));
  EXPECT_EQ(4u, window.waiters());
  EXPECT_TRUE(window.leave_head(queue_pair(1)));
  EXPECT_EQ(3u, window.waiters());
  window.forget(queue_pair(2));
  EXPECT_EQ(1u, window.waiters());
  EXPECT_EQ(&queue_pair(3), next(window));
  EXPECT_EQ(0u, window.waiters());
  EXPECT_FALSE(window.leave_head(queue_pair(3)));
}

TEST(RoceFlowWindow, Take_WindowSmallerThanAPacket_GivesOnePacket) {
  FlowWindow window(100);
  EXPECT_EQ(kPacket, window.take(kSize, kPacket)) << "nothing would ever make room";
  EXPECT_EQ(0u, window.take(kSize, kPacket));
  window.give_back(kPacket);
  EXPECT_EQ(kPacket, window.take(kSize, kPacket));
}

TEST(RoceFlowWindow, Resize_ToLess_IsFullUntilLessIsUnderWay) {
  FlowWindow window(kSize);
  window.take(kSize, kPacket);
  window.resize(kSize / 2);
  EXPECT_EQ(0u, window.take(1, kPacket));
  window.give_back(kSize / 2);
  EXPECT_EQ(0u, window.take(1, kPacket));
  window.give_back(kSize / 2);
  EXPECT_EQ(kSize / 2, window.take(kSize, kPacket));
}

TEST(RoceFlowWindow, TakeAnyway_NoRoom_Succeeds) {
  FlowWindow window(kSize);
  window.take(kSize, kPacket);
  window.take_anyway(kPacket);
  EXPECT_EQ(kSize + kPacket, window.used());
  window.give_back(kSize + kPacket);
  EXPECT_EQ(0u, window.used());
}

TEST(RoceFlowWindow, WaitQueue_KeepsItsOrder) {
  FlowWindow window(kSize);
  EXPECT_EQ(nullptr, next(window));
  for (size_t number = 1; number <= 4; ++number) window.wait(queue_pair(number));
  window.forget(queue_pair(2));
  window.forget(queue_pair(7));
  EXPECT_EQ(3u, window.waiters());
  EXPECT_EQ(&queue_pair(1), next(window));
  window.wait(queue_pair(1));
  EXPECT_FALSE(window.leave_head(queue_pair(4)));
  EXPECT_TRUE(window.leave_head(queue_pair(3)));
  EXPECT_EQ(&queue_pair(4), next(window));
  EXPECT_EQ(&queue_pair(1), next(window));
  EXPECT_FALSE(window.has_waiters());
}

TEST(RoceFlowWindow, PassOver_Head_GoesToTheEndOfTheQueue) {
  FlowWindow window(kSize);
  for (const size_t number : {1, 2, 3}) window.wait(queue_pair(number));
  window.pass_over(queue_pair(2));
  EXPECT_EQ(&queue_pair(1), window.first()) << "he was not at the head";
  window.pass_over(queue_pair(1));
  EXPECT_EQ(3u, window.waiters());
  for (const size_t number : {2, 3, 1}) EXPECT_EQ(&queue_pair(number), next(window));
  window.pass_over(queue_pair(1));
  EXPECT_FALSE(window.has_waiters()) << "he had left the line";
}

TEST(RoceFlowWindow, Take_ManyThreads_NeverExceedTheWindow) {
  FlowWindow window(kSize);
  std::atomic<uint64_t> held{0};
  std::atomic<bool> too_much{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 20'000; ++round) {
        const uint64_t taken = window.take(kSize / 3, 0);
        if (held.fetch_add(taken) + taken > kSize) too_much = true;
        held -= taken;
        window.give_back(taken);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(too_much);
  EXPECT_EQ(0u, window.used());
}

}  // namespace
}  // namespace nupa::roce
