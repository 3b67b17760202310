// SPDX-License-Identifier: Apache-2.0
/// Tests of the engine of Intel DSA on a simulated work queue: descriptors, page faults, errors, a full queue.
#include "copy/dsa_engine.h"

#include <thread>

#include "../../support/soon.h"
#include "jobs.h"
#include "simulated_queue.h"

namespace nupa::copy {
namespace {

using test::soon;

constexpr uint64_t kPage = SimulatedQueue::kPage;

class DsaEngineTest : public ::testing::Test {
 protected:
  DsaEngine& engine(const SimulatedQueue::Options& options = {}) {
    if (!made_) {
      auto made = std::make_unique<SimulatedQueue>(options);
      queue = made.get();
      made_.emplace(std::move(made));
    }
    return *made_;
  }
  static JobState end_of(Work& work) {
    JobState state = JobState::kRunning;
    EXPECT_TRUE(soon([&] { return (state = work.poll()) != JobState::kRunning; }));
    return state;
  }
  /// Executes all that waits, and what follows it.
  void run_all(Work& work) {
    while (work.poll() == JobState::kRunning && queue->step()) {
    }
  }

  SimulatedQueue* queue = nullptr;

 private:
  std::optional<DsaEngine> made_;
};

TEST_F(DsaEngineTest, Submit_SeveralCopies_CopiesEveryByte) {
  constexpr uint64_t kFirst = 3 * kMiB + 100, kSecond = 2 * kMiB + 4000, kEnd = kFirst + kSecond;
  const Pages from(6 * kMiB), to(6 * kMiB);
  from.fill(1);
  std::memset(to.at(), 9, 6 * kMiB);
  Work work(engine());
  work.job->copies = {{to.at(), from.at(), kFirst}, {to.at(kFirst), from.at(kFirst), kSecond}};
  work.job->last = {to.at(kEnd), from.at(kEnd), 4};
  ASSERT_TRUE(work.submit());
  EXPECT_EQ(end_of(work), JobState::kDone);
  EXPECT_FALSE(work.is_busy());
  EXPECT_TRUE(same(to, from, kEnd + 4));
  EXPECT_EQ(to.at()[kEnd + 4], std::byte{9}) << "nothing behind it is written";
  EXPECT_EQ(queue->seen().size(), 4u + 3u);
  EXPECT_EQ(queue->reported_ends(), 7u);
  EXPECT_EQ(work.poll(), JobState::kDone) << "a further poll changes nothing";
  EXPECT_EQ(work.busy, 8u);
}

TEST_F(DsaEngineTest, Descriptors_OfAJob_AreAsTheSpecificationHasThem) {
  constexpr uint64_t kBytes = 9 * kMiB;
  const Pages from(kBytes), to(kBytes);
  from.fill(2);
  std::memset(to.at(), 9, kBytes);
  Work work(engine({.is_held = true}));
  work.whole(to, from, kBytes);
  ASSERT_TRUE(work.submit());
  EXPECT_EQ(queue->waiting(), DsaEngine::kFlights) << "a job does not fill the queue";
  run_all(work);
  EXPECT_EQ(work.poll(), JobState::kDone);
  uint64_t bytes = 0;
  for (const dsa_hw_desc& descriptor : queue->seen()) {
    EXPECT_EQ(descriptor.opcode, uint32_t{DSA_OPCODE_MEMMOVE});
    EXPECT_EQ(descriptor.flags, uint32_t{IDXD_OP_FLAG_CRAV | IDXD_OP_FLAG_RCR});
    EXPECT_EQ(descriptor.completion_addr % 32, 0u);
    EXPECT_LE(descriptor.xfer_size, DsaEngine::kMostPiece);
    EXPECT_EQ(descriptor.src_addr, reinterpret_cast<uint64_t>(from.at(bytes)));
    EXPECT_EQ(descriptor.dst_addr, reinterpret_cast<uint64_t>(to.at(bytes)));
    bytes += descriptor.xfer_size;
  }
  EXPECT_EQ(bytes, kBytes - 8) << "the processor stores the last word";
}

TEST_F(DsaEngineTest, MaxTransfer_OfTheQueue_LimitsThePieces) {
  constexpr uint64_t kLimit = 64 * kPage;
  const Pages from(kMiB), to(kMiB);
  from.fill(3);
  Work work(engine({.max_transfer = kLimit}));
  work.whole(to, from, kMiB);
  ASSERT_TRUE(work.submit());
  EXPECT_EQ(end_of(work), JobState::kDone);
  EXPECT_TRUE(same(to, from, kMiB));
  EXPECT_GE(queue->seen().size(), kMiB / kLimit);
  for (const dsa_hw_desc& descriptor : queue->seen()) EXPECT_LE(descriptor.xfer_size, kLimit);
}

TEST_F(DsaEngineTest, LastBytes_AreStoredWhenAllPiecesAreCopied) {
  constexpr uint64_t kBytes = 3 * kMiB;
  const Pages from(kBytes), to(kBytes);
  from.fill(4);
  std::memset(to.at(), 9, kBytes);
  Work work(engine({.is_held = true}));
  work.whole(to, from, kBytes);
  ASSERT_TRUE(work.submit());
  EXPECT_TRUE(queue->step());
  EXPECT_TRUE(queue->step());
  EXPECT_EQ(work.poll(), JobState::kRunning);
  EXPECT_EQ(to.at()[kBytes - 1], std::byte{9});
  EXPECT_TRUE(work.is_busy());
  EXPECT_TRUE(queue->step());
  EXPECT_EQ(to.at()[kBytes - 1], std::byte{9}) << "no thread has polled";
  EXPECT_EQ(work.poll(), JobState::kDone);
  EXPECT_TRUE(same(to, from, kBytes));
}

TEST_F(DsaEngineTest, LastBytesOnly_NeedNoDescriptor) {
  const Pages from(4096), to(4096);
  from.fill(5);
  Work work(engine());
  work.job->last = {to.at(8), from.at(8), 8};
  ASSERT_TRUE(work.submit());
  EXPECT_EQ(work.poll(), JobState::kDone);
  EXPECT_TRUE(same(to, from, 8, 8));
  EXPECT_TRUE(queue->seen().empty());
}

TEST_F(DsaEngineTest, PageFaults_OfUntouchedPages_AreContinued) {
  constexpr uint64_t kBytes = kMiB / 2;
  const Pages from(kBytes), to(kBytes);
  from.fill(6);
  Work work(engine());
  work.whole(to, from, kBytes);  // no page of the destination was touched
  ASSERT_TRUE(work.submit());
  EXPECT_EQ(end_of(work), JobState::kDone);
  EXPECT_TRUE(same(to, from, kBytes));
  EXPECT_GT(queue->faults(), 0u) << "or the test shows nothing";
  EXPECT_LE(queue->faults(), kBytes / kPage + 1) << "a page that was touched is there";
  EXPECT_EQ(queue->reported_ends(), queue->seen().size());
}

TEST_F(DsaEngineTest, PageFault_InTheMiddle_IsContinuedBehindTheBytesThatWereMoved) {
  const Pages from(kMiB), to(kMiB);
  from.fill(7);
  std::memset(to.at(), 9, kMiB);
  Work work(engine({.is_held = true}));
  work.whole(to, from, kMiB);
  queue->take_away(from.at(40 * kPage), 1);
  ASSERT_TRUE(work.submit());
  run_all(work);
  EXPECT_EQ(work.poll(), JobState::kDone);
  EXPECT_TRUE(same(to, from, kMiB));
  const auto seen = queue->seen();
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[1].src_addr, reinterpret_cast<uint64_t>(from.at(40 * kPage)));
  EXPECT_EQ(seen[1].dst_addr, reinterpret_cast<uint64_t>(to.at(40 * kPage)));
  EXPECT_EQ(seen[1].xfer_size, kMiB - 8 - 40 * kPage);
}

TEST_F(DsaEngineTest, PageFault_WithoutProgressAgainAndAgain_HasTheProcessorCopyThePage) {
  const Pages from(kMiB), to(kMiB);
  from.fill(8);
  std::memset(to.at(), 9, kMiB);
  Work work(engine({.is_held = true}));
  work.whole(to, from, kMiB);
  queue->take_away(from.at(), 1000);
  ASSERT_TRUE(work.submit());
  run_all(work);
  EXPECT_EQ(work.poll(), JobState::kDone);
  EXPECT_TRUE(same(to, from, kMiB));
  EXPECT_LE(queue->faults(), 4u);
}

TEST_F(DsaEngineTest, UnmappedSource_EndsWithAFaultWhenAllDescriptorsHaveEnded) {
  constexpr uint64_t kBytes = 6 * kMiB;
  const Pages from(kBytes), to(kBytes);
  from.fill(9);
  std::memset(to.at(), 9, kBytes);
  from.unmap(3 * kMiB + kPage, kPage);
  Work work(engine({.is_held = true}));
  work.whole(to, from, kBytes);
  ASSERT_TRUE(work.submit());
  EXPECT_TRUE(queue->step());  // the newest: the fourth piece
  EXPECT_EQ(work.poll(), JobState::kRunning) << "three others may access memory";
  EXPECT_TRUE(work.is_busy());
  EXPECT_EQ(queue->waiting(), 3u) << "nothing more is submitted";
  while (queue->step()) {
  }
  EXPECT_EQ(work.poll(), JobState::kFault);
  EXPECT_FALSE(work.is_busy());
  EXPECT_EQ(to.at()[kBytes - 1], std::byte{9}) << "the last bytes of a failed copy are not stored";
}

TEST_F(DsaEngineTest, UnmappedDestination_EndsWithAFault) {
  const Pages from(kMiB), to(kMiB);
  from.fill(10);
  to.unmap(5 * kPage, kPage);
  Work work(engine());
  work.whole(to, from, kMiB);
  ASSERT_TRUE(work.submit());
  EXPECT_EQ(end_of(work), JobState::kFault);
}

TEST_F(DsaEngineTest, ErrorOfTheDevice_BreaksTheEngine) {
  const Pages from(kMiB), to(kMiB);
  from.fill(11);
  Work work(engine({.is_held = true}));
  work.whole(to, from, kMiB);
  queue->fail_next(DSA_COMP_HW_ERR1, 4096);
  ASSERT_TRUE(work.submit());
  EXPECT_TRUE(queue->step());
  EXPECT_EQ(work.poll(), JobState::kBroken);
  EXPECT_FALSE(work.is_busy());
  EXPECT_FALSE(work.submit()) << "it is not used again";
  EXPECT_FALSE(work.is_busy());
}

TEST_F(DsaEngineTest, QueueThatTakesNothingAnyMore_BreaksARunningJob) {
  constexpr uint64_t kBytes = 8 * kMiB;
  const Pages from(kBytes), to(kBytes);
  from.fill(12);
  Work work(engine({.is_held = true}));
  work.whole(to, from, kBytes);
  ASSERT_TRUE(work.submit());
  queue->break_down();
  EXPECT_TRUE(queue->step());
  EXPECT_EQ(work.poll(), JobState::kRunning);
  while (queue->step()) {
  }
  EXPECT_EQ(work.poll(), JobState::kBroken);
}

TEST_F(DsaEngineTest, FullQueue_AtTheBeginning_RefusesTheJob) {
  const Pages from(kMiB), to(kMiB);
  from.fill(13);
  Work work(engine());
  work.whole(to, from, kMiB);
  queue->refuse(1);
  EXPECT_FALSE(work.submit());
  EXPECT_EQ(work.busy, 8u) << "the caller counts itself";
  EXPECT_EQ(work.poll(), JobState::kIdle);
  ASSERT_TRUE(work.submit()) << "there is room again";
  EXPECT_EQ(end_of(work), JobState::kDone);
  EXPECT_TRUE(same(to, from, kMiB));
}

TEST_F(DsaEngineTest, FullQueue_Later_IsTriedAgainByPoll) {
  constexpr uint64_t kBytes = 7 * kMiB;
  const Pages from(kBytes), to(kBytes);
  from.fill(14);
  std::memset(to.at(), 9, kBytes);
  Work work(engine({.size = 2, .is_held = true}));
  work.whole(to, from, kBytes);
  ASSERT_TRUE(work.submit());
  EXPECT_EQ(queue->waiting(), 2u);
  EXPECT_TRUE(queue->step());
  EXPECT_EQ(work.poll(), JobState::kRunning);
  EXPECT_EQ(queue->waiting(), 2u);
  queue->refuse(3);
  run_all(work);
  queue->go();
  EXPECT_EQ(end_of(work), JobState::kDone);
  EXPECT_TRUE(same(to, from, kBytes));
  uint64_t bytes = 0;
  for (const dsa_hw_desc& descriptor : queue->seen()) bytes += descriptor.xfer_size;
  EXPECT_EQ(bytes, kBytes - 8) << "each byte once";
}

TEST_F(DsaEngineTest, Cancel_WaitsForTheDescriptorsThatAreUnderWay) {
  constexpr uint64_t kBytes = 8 * kMiB;
  const Pages from(kBytes), to(kBytes);
  from.fill(15);
  Work work(engine({.is_held = true}));
  work.whole(to, from, kBytes);
  ASSERT_TRUE(work.submit());
  std::atomic<bool> over{false};
  std::thread canceller([&] {
    engine().cancel(*work.job);
    over = true;
  });
  for (size_t i = 0; i < DsaEngine::kFlights; ++i) {
    // sleep: a cancel that does not wait would return within that time
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_FALSE(over.load());
    EXPECT_TRUE(work.is_busy());
    EXPECT_TRUE(queue->step());
  }
  canceller.join();
  EXPECT_FALSE(work.is_busy());
  EXPECT_EQ(work.poll(), JobState::kIdle);
  EXPECT_EQ(queue->seen().size(), DsaEngine::kFlights) << "nothing more was submitted";
}

TEST_F(DsaEngineTest, Cancel_OfADescriptorThatMeetsAFault_DoesNotContinueIt) {
  const Pages from(kMiB), to(kMiB);
  from.fill(16);
  Work work(engine({.is_held = true}));
  work.whole(to, from, kMiB);  // no page of the destination was touched
  ASSERT_TRUE(work.submit());
  std::thread canceller([&] { engine().cancel(*work.job); });
  queue->go();
  canceller.join();
  EXPECT_EQ(queue->seen().size(), 1u);
  EXPECT_EQ(work.poll(), JobState::kIdle);
}

TEST_F(DsaEngineTest, BytesCompleted_BeyondThePiece_AreNotBelieved) {
  const Pages from(kMiB), to(kMiB);
  from.fill(17);
  std::memset(to.at(), 9, kMiB);
  Work work(engine({.is_held = true}));
  work.job->copies = {{to.at(), from.at(), kMiB / 2}};
  queue->fail_next(DSA_COMP_PAGE_FAULT_NOBOF, UINT32_MAX);
  ASSERT_TRUE(work.submit());
  run_all(work);
  EXPECT_EQ(work.poll(), JobState::kDone);
  EXPECT_TRUE(same(to, from, kMiB / 2));
  EXPECT_EQ(to.at()[kMiB / 2], std::byte{9});
}

TEST_F(DsaEngineTest, NextLook_FollowsTheBytesThatAreLeft) {
  const Pages from(4 * kMiB), to(4 * kMiB);
  std::memset(to.at(), 9, 4 * kMiB);
  from.fill(18);
  Work work(engine({.is_held = true}));
  work.whole(to, from, 4 * kMiB);
  ASSERT_TRUE(work.submit());
  const int64_t first = engine().next_look(*work.job, 1000);
  EXPECT_GT(first, 1000 + 100'000);
  EXPECT_LT(first, 1000 + 2'000'000);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue->step());
  EXPECT_EQ(work.poll(), JobState::kRunning);
  EXPECT_LT(engine().next_look(*work.job, 1000), first - 100'000);
  queue->go();
}

}  // namespace
}  // namespace nupa::copy
