// SPDX-License-Identifier: Apache-2.0
/// Tests of the engine whose copies threads of the library do.
#include "copy/thread_engine.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/racing_copy.h"
#include "../../support/soon.h"
#include "jobs.h"

namespace nupa::copy {
namespace {

using test::soon;

class ThreadEngineTest : public ::testing::Test {
 protected:
  ThreadEngine& engine(uint32_t threads = 1) {
    if (!made_)
      made_.emplace(threads, Hooks{.ended = [this] { ++ended; },
                                   .moves = &moves,
                                   .started_threads = [this](int count) { started += count; },
                                   .writes_unguarded = [] { FAIL(); }});
    return *made_;
  }
  static size_t copying_threads() {
    size_t found = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream file(entry.path() / "comm");
      std::string name;
      found += std::getline(file, name) && name == "nupa-copy";
    }
    return found;
  }

  std::shared_mutex moves;
  std::atomic<int> ended{0};
  std::atomic<int> started{0};

 private:
  std::optional<ThreadEngine> made_;
};

TEST_F(ThreadEngineTest, Submit_SeveralCopies_CopiesEveryByte) {
  const Pages from(4 * kMiB), to(4 * kMiB);
  from.fill(1);
  Work work(engine());
  constexpr uint64_t kFirst = kMiB + 77, kSecond = 2 * kChunk, kEnd = kFirst + kSecond;
  work.job->copies = {{to.at(), from.at(), kFirst}, {to.at(kFirst), from.at(kFirst), kSecond}};
  work.job->last = {to.at(kEnd), from.at(kEnd), 4};
  ASSERT_TRUE(work.submit());
  EXPECT_TRUE(soon([&] { return work.poll() == JobState::kDone; }));
  EXPECT_FALSE(work.is_busy());
  EXPECT_TRUE(same(to, from, kEnd + 4));
  EXPECT_EQ(to.at()[kEnd + 4], std::byte{0}) << "nothing behind it is written";
  EXPECT_TRUE(soon([&] { return ended == 1; }));
}

TEST_F(ThreadEngineTest, Submit_LastBytesOnly_StoresThem) {
  const Pages from(4096), to(4096);
  from.fill(2);
  Work work(engine());
  work.job->last = {to.at(8), from.at(8), 8};
  ASSERT_TRUE(work.submit());
  EXPECT_TRUE(soon([&] { return work.poll() == JobState::kDone; }));
  EXPECT_TRUE(same(to, from, 8, 8));
}

TEST_F(ThreadEngineTest, Threads_BeforeTheFirstJob_DoNotExist) {
  // The system lists a thread that was joined for a moment longer.
  ASSERT_TRUE(soon([&] { return copying_threads() == 0; })) << "of an earlier test";
  ThreadEngine& several = engine(3);
  EXPECT_EQ(copying_threads(), 0u);
  const Pages from(4096), to(4096);
  for (int i = 0; i < 2; ++i) {
    Work work(several);
    work.whole(to, from, 4096);
    ASSERT_TRUE(work.submit());
    EXPECT_TRUE(soon([&] { return work.poll() == JobState::kDone; }));
  }
  EXPECT_TRUE(soon([&] { return copying_threads() == 3; }));
  EXPECT_EQ(started, 3) << "they are reported once";
}

TEST_F(ThreadEngineTest, SeveralThreads_ManyJobs_EachEndsOnce) {
  ThreadEngine& several = engine(4);
  constexpr size_t kJobs = 12, kBytes = 3 * kChunk + 100;
  const Pages from(kBytes);
  from.fill(3);
  std::vector<std::unique_ptr<Pages>> targets;
  std::vector<std::unique_ptr<Work>> works;
  for (size_t i = 0; i < kJobs; ++i) {
    targets.push_back(std::make_unique<Pages>(kBytes));
    works.push_back(std::make_unique<Work>(several));
    works.back()->whole(*targets.back(), from, kBytes);
    works.back()->job->writes_program_memory = i % 3 == 0;
    ASSERT_TRUE(works.back()->submit());
  }
  for (size_t i = 0; i < kJobs; ++i) {
    EXPECT_TRUE(soon([&] { return works[i]->poll() == JobState::kDone; }));
    EXPECT_TRUE(same(*targets[i], from, kBytes));
    EXPECT_EQ(works[i]->busy, 8u);
  }
  EXPECT_TRUE(soon([&] { return ended == kJobs; }));
}

TEST_F(ThreadEngineTest, LastBytes_OfALongCopy_BecomeVisibleAfterAllOthers) {
  ThreadEngine& several = engine(2);
  constexpr size_t kBytes = 8 * kMiB;
  const Pages from(kBytes), to(kBytes);
  std::memset(from.at(), 1, kBytes);
  std::memset(to.at(), 2, kBytes);
  Work work(several);
  work.whole(to, from, kBytes);
  const auto* const end = reinterpret_cast<const uint64_t*>(to.at(kBytes - 8));
  ASSERT_TRUE(work.submit());
  uint64_t seen = 0;
  EXPECT_TRUE(soon([&] {
    // As a program polls on memory.
    for (int i = 0; i < 100000 && (seen = __atomic_load_n(end, __ATOMIC_ACQUIRE)) == 0x0202020202020202u; ++i) {
    }
    return seen != 0x0202020202020202u;
  }));
  EXPECT_TRUE(same(to, from, kBytes));
}

TEST_F(ThreadEngineTest, UnmappedSource_EndsWithAFault) {
  const Pages from(2 * kMiB), to(2 * kMiB);
  from.unmap(kMiB + 4096, 4096);
  Work work(engine(2));
  work.whole(to, from, 2 * kMiB);
  ASSERT_TRUE(work.submit());
  EXPECT_TRUE(soon([&] { return work.poll() == JobState::kFault; }));
  EXPECT_FALSE(work.is_busy());
  // The engine goes on with others.
  const Pages other(4096);
  Work next(engine());
  next.whole(to, other, 4096);
  ASSERT_TRUE(next.submit());
  EXPECT_TRUE(soon([&] { return next.poll() == JobState::kDone; }));
}

TEST_F(ThreadEngineTest, UnmappedLastBytes_EndWithAFault) {
  const Pages from(8192), to(8192);
  to.unmap(4096, 4096);
  Work work(engine());
  work.job->copies = {{to.at(), from.at(), 4096}};
  work.job->last = {to.at(4096), from.at(4096), 8};
  ASSERT_TRUE(work.submit());
  EXPECT_TRUE(soon([&] { return work.poll() == JobState::kFault; }));
}

TEST_F(ThreadEngineTest, ProgramMemory_WhileItMoves_IsNotWritten) {
  const Pages from(2 * kMiB), to(2 * kMiB);
  from.fill(4);
  Work reads(engine());
  reads.whole(to, from, 2 * kMiB);
  reads.job->writes_program_memory = true;
  std::unique_lock moving(moves);
  ASSERT_TRUE(reads.submit());
  // sleep: a thread that does not wait would write within that time
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(reads.poll(), JobState::kRunning);
  EXPECT_EQ(to.at()[100], std::byte{0});
  moving.unlock();
  EXPECT_TRUE(soon([&] { return reads.poll() == JobState::kDone; }));
  EXPECT_TRUE(same(to, from, 2 * kMiB));
}

TEST_F(ThreadEngineTest, Cancel_ByAHolderOfTheMutexOfMoves_Returns) {
  const Pages from(kMiB), to(kMiB);
  Work reads(engine());
  reads.whole(to, from, kMiB);
  reads.job->writes_program_memory = true;
  std::unique_lock moving(moves);
  ASSERT_TRUE(reads.submit());
  EXPECT_TRUE(soon([&] { return copying_threads() == 1; }));
  engine().cancel(*reads.job);
  EXPECT_EQ(reads.poll(), JobState::kIdle);
  EXPECT_FALSE(reads.is_busy());
  moving.unlock();
  // The thread that waited finds no job, and takes the next one.
  Work next(engine());
  next.whole(to, from, kMiB);
  ASSERT_TRUE(next.submit());
  EXPECT_TRUE(soon([&] { return next.poll() == JobState::kDone; }));
  // The hook is called after the job's end shows.
  EXPECT_TRUE(soon([&] { return ended == 1; }));
}

TEST_F(ThreadEngineTest, Cancel_InTheMiddle_AccessesNothingAfterwards) {
  constexpr size_t kBytes = 32 * kMiB;
  const Pages from(kBytes);
  std::memset(from.at(), 1, kBytes);
  for (int turn = 0; turn < 20; ++turn) {
    const Pages to(kBytes);
    Work work(engine(2));
    work.whole(to, from, kBytes);
    ASSERT_TRUE(work.submit());
    if (turn % 2 == 1) {
      EXPECT_TRUE(soon([&] { return base::load_racing(to.at()) == std::byte{1}; }));
    }
    engine().cancel(*work.job);
    ASSERT_FALSE(work.is_busy());
    const std::byte last = to.at()[kBytes - 1];
    size_t copied = 0;
    for (size_t at = 0; at < kBytes; at += 4096) copied += to.at()[at] == std::byte{1};
    // sleep: a thread that went on would write more within that time
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (size_t at = 0; at < kBytes; at += 4096) copied -= to.at()[at] == std::byte{1};
    EXPECT_EQ(copied, 0u);
    EXPECT_EQ(to.at()[kBytes - 1], last);
  }
}

TEST_F(ThreadEngineTest, Job_SubmittedAgainAfterACancel_IsCopiedFromItsBeginning) {
  constexpr size_t kBytes = 16 * kMiB;
  const Pages from(kBytes), to(kBytes);
  from.fill(5);
  Work work(engine());
  work.whole(to, from, kBytes);
  ASSERT_TRUE(work.submit());
  engine().cancel(*work.job);
  std::memset(to.at(), 0, kBytes);
  ASSERT_TRUE(work.submit());
  EXPECT_TRUE(soon([&] { return work.poll() == JobState::kDone; }));
  EXPECT_TRUE(same(to, from, kBytes));
}

}  // namespace
}  // namespace nupa::copy
