// SPDX-License-Identifier: Apache-2.0
/// Completions beside the ring: their order, turns with the ring's entries, and what drops them.
#include <atomic>
#include <thread>

#include "shm_fixture.h"

namespace nupa::core {
namespace {

class SideSlotTest : public ShmTest {
 protected:
  Qp* loop(Cq* queue = nullptr) {
    Qp* qp = make_qp(QpType::kRc, nullptr, queue);
    EXPECT_EQ(connect(*qp, qp->number()), 0);
    // The first completion goes into the ring, which maps it.
    EXPECT_EQ(write(*qp, 99), 0);
    EXPECT_EQ(poll(queue), 99u);
    return qp;
  }
  /// The number of the next completion without a wait; 0: there is none.
  uint64_t poll(Cq* queue = nullptr) {
    WorkCompletion wc{};
    return (queue == nullptr ? cq : queue)->poll(&wc, 1) == 1 ? wc.wr_id : 0;
  }
  void expect_write(Qp& qp, uint64_t wr_id) {
    WorkCompletion wc;
    std::memset(&wc, 0xff, sizeof wc);
    ASSERT_EQ(cq->poll(&wc, 1), 1);
    EXPECT_EQ(wc.wr_id, wr_id);
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_EQ(wc.opcode, WcOpcode::kRdmaWrite);
    EXPECT_EQ(wc.byte_len, 8u);
    EXPECT_EQ(wc.qp_num, qp.number());
    EXPECT_EQ(
        wc.vendor_err | wc.imm_data | wc.src_qp | wc.wc_flags | wc.pkey_index | wc.slid | wc.sl | wc.dlid_path_bits,
        0u);
  }
};

TEST_F(SideSlotTest, Completion_BesideTheRing_HasAllItsFields) {
  Qp* qp = loop();
  ASSERT_EQ(write(*qp, 0x123456789abcdef0), 0);
  EXPECT_TRUE(cq->side_slot()->holds());
  expect_write(*qp, 0x123456789abcdef0);
  EXPECT_FALSE(cq->side_slot()->holds());
  EXPECT_TRUE(is_empty());
}

TEST_F(SideSlotTest, Completion_InTheRing_HasAllItsFields) {
  Qp* qp = loop();
  ASSERT_EQ(write(*qp, 1), 0);
  ASSERT_EQ(write(*qp, 2), 0);
  EXPECT_EQ(poll(), 1u);
  expect_write(*qp, 2);
}

TEST_F(SideSlotTest, Completions_OfOneQueuePair_ComeInOrder) {
  Qp* qp = loop();
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_EQ(write(*qp, i), 0);
  EXPECT_EQ(poll(), 1u);
  ASSERT_EQ(write(*qp, 4), 0);  // the slot is free, and two of its earlier ones wait in the ring
  for (uint64_t i = 2; i <= 4; ++i) EXPECT_EQ(poll(), i);
  ASSERT_EQ(write(*qp, 5), 0);
  EXPECT_TRUE(cq->side_slot()->holds()) << "all earlier ones were polled";
  ASSERT_EQ(write(*qp, 6), 0);
  WorkCompletion wc[3];
  ASSERT_EQ(cq->poll(wc, 3), 2);
  EXPECT_EQ(wc[0].wr_id, 5u);
  EXPECT_EQ(wc[1].wr_id, 6u);
}

TEST_F(SideSlotTest, Completions_OfTwoQueuePairs_ComeInOrder) {
  Qp* first = loop();
  Qp* second = loop();
  ASSERT_EQ(write(*first, 1), 0);
  ASSERT_EQ(write(*second, 11), 0);  // into the ring
  EXPECT_EQ(poll(), 1u) << "what is in the ring came later, as the answer to a message does";
  ASSERT_EQ(write(*first, 2), 0);
  EXPECT_TRUE(cq->side_slot()->holds());
  EXPECT_EQ(poll(), 11u) << "what is in the ring came before";
  EXPECT_EQ(poll(), 2u);
}

TEST_F(SideSlotTest, Poll_OneByOne_NeitherIsKeptBack) {
  Qp* first = loop();
  Qp* second = loop();
  uint64_t own = 1, others = 100, seen_own = 0, seen_others = 0;
  ASSERT_EQ(write(*first, own), 0);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(write(*second, ++others), 0);
  for (int turn = 0; turn < 8; ++turn) {
    const uint64_t got = poll();
    if (got < 100) {
      ++seen_own;
      ASSERT_EQ(write(*first, ++own), 0);  // the slot is never empty
    } else {
      ++seen_others;
    }
  }
  EXPECT_EQ(seen_others, 4u) << "a program that posts again after each completion gets those in the ring";
  EXPECT_EQ(seen_own, 4u) << "entries in the ring do not keep it back";
}

TEST_F(SideSlotTest, Poll_Many_TakesBoth) {
  Qp* first = loop();
  Qp* second = loop();
  ASSERT_EQ(write(*first, 1), 0);
  ASSERT_EQ(write(*second, 2), 0);
  WorkCompletionEx wc[3];
  ASSERT_EQ(cq->poll_ex(wc, 3), 2);
  EXPECT_EQ(wc[0].timestamp, 0u);
  EXPECT_EQ(wc[0].wc.wr_id + wc[1].wc.wr_id, 3u);
  ASSERT_EQ(write(*first, 3), 0);
  wc[0].timestamp = 7;
  ASSERT_EQ(cq->poll_ex(wc, 3), 1);
  EXPECT_EQ(wc[0].wc.wr_id, 3u);
  EXPECT_EQ(wc[0].timestamp, 0u);
  ASSERT_EQ(write(*first, 4), 0);
  EXPECT_EQ(cq->poll(&wc[0].wc, 0), 0) << "no room";
  EXPECT_EQ(poll(), 4u);
}

TEST_F(SideSlotTest, Resize_OfAQueueThatHoldsOne_KeepsTheOrder) {
  Qp* qp = loop();
  for (uint64_t i = 1; i <= 20; ++i) {  // the slot's place in the ring is far from the beginning
    ASSERT_EQ(write(*qp, 2 * i), 0);
    ASSERT_EQ(write(*qp, 2 * i + 1), 0);
    ASSERT_EQ(poll(), 2 * i);
    ASSERT_EQ(poll(), 2 * i + 1);
  }
  ASSERT_EQ(write(*qp, 100), 0);
  EXPECT_TRUE(cq->side_slot()->holds());
  ASSERT_EQ(cq->resize(128), 0);
  ASSERT_EQ(write(*qp, 101), 0);  // at the beginning of the new ring
  EXPECT_EQ(poll(), 100u);
  EXPECT_EQ(poll(), 101u);
}

TEST_F(SideSlotTest, Reset_DropsTheCompletionOfItsQueuePairOnly) {
  Qp* first = loop();
  Qp* second = loop();
  ASSERT_EQ(write(*first, 1), 0);
  ASSERT_EQ(move(*second, QpState::kReset), 0);
  EXPECT_EQ(poll(), 1u);
  ASSERT_EQ(write(*first, 2), 0);
  ASSERT_EQ(move(*first, QpState::kReset), 0);
  EXPECT_FALSE(cq->side_slot()->holds());
  EXPECT_TRUE(is_empty());
  ASSERT_EQ(connect(*first, first->number()), 0);
  ASSERT_EQ(write(*first, 3), 0);
  EXPECT_TRUE(cq->side_slot()->holds()) << "as before the reset";
  EXPECT_EQ(poll(), 3u);
}

TEST_F(SideSlotTest, Requests_PolledBesideTheRing_MakeRoomInTheSendQueue) {
  Qp* qp = loop();
  for (uint64_t i = 1; i <= 500; ++i) {
    ASSERT_EQ(write(*qp, i), 0) << i;
    ASSERT_EQ(poll(), i);
  }
}

TEST_F(SideSlotTest, Failure_GoesIntoTheRing) {
  Qp* qp = loop();
  ASSERT_EQ(write(*qp, 1, 0, 0xbad), 0);
  EXPECT_FALSE(cq->side_slot()->holds());
  WorkCompletion wc{};
  ASSERT_EQ(cq->poll(&wc, 1), 1);
  EXPECT_EQ(wc.status, WcStatus::kRemAccessErr);
}

TEST_F(SideSlotTest, QueuesWithEventsOrTimestamps_HaveNone) {
  auto channel = std::move(*handle->create_channel());
  auto with_events = std::move(*handle->create_cq({.entries = 4, .channel = channel.get()}));
  auto with_times = std::move(*handle->create_cq({.entries = 4, .timestamps = true}));
  EXPECT_EQ(static_cast<Cq*>(with_events.get())->side_slot(), nullptr);
  EXPECT_EQ(static_cast<Cq*>(with_times.get())->side_slot(), nullptr);
}

TEST_F(SideSlotTest, TwoThreadsPost_OnePolls_EachCompletionComesOnceAndInOrder) {
  constexpr uint64_t kEach = 20000, kFirst = 1000000;
  Qp* qps[2] = {loop(), loop()};
  std::atomic<uint64_t> polled[2] = {0, 0};
  std::vector<std::thread> posters;
  for (uint64_t side = 0; side < 2; ++side)
    posters.emplace_back([&, side] {
      for (uint64_t i = 1; i <= kEach; ++i) {
        while (i - polled[side].load() > 8) std::this_thread::yield();
        EXPECT_EQ(write(*qps[side], side * kFirst + i), 0);
      }
    });
  uint64_t seen[2] = {0, 0};
  while (seen[0] + seen[1] < 2 * kEach) {
    WorkCompletion wc[2];
    const int got = cq->poll(wc, 1 + static_cast<int>(seen[0] % 2));
    ASSERT_GE(got, 0);
    for (int i = 0; i < got; ++i) {
      const uint64_t side = wc[i].wr_id / kFirst;
      ASSERT_EQ(wc[i].wr_id % kFirst, ++seen[side]);
      polled[side].store(seen[side]);
    }
  }
  for (std::thread& poster : posters) poster.join();
  EXPECT_TRUE(is_empty());
}

}  // namespace
}  // namespace nupa::core
