// SPDX-License-Identifier: Apache-2.0
/// Tests of how a rank waits: numbers that wrap, which threads wake, which ranks are probed, and what remains at the
/// end.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "ccl/communicator/executor.h"
#include "ccl/channel/arena.h"
#include "ccl/coroutine/waiter.h"
#include "progress/words.h"
#include "../../support/sleeper.h"

namespace nupa::ccl {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
using progress::count_up;
using test::expect_woken;

constexpr int64_t kLimitNs = test::kSleeperLimitNs;
constexpr WaitRules kSleepAtOnce{0, true};
constexpr WaitRules kCoresForAll{0, false};

/// Records the calls of a waiting rank, and ends the wait when `cause` is set.
class TestHooks final : public ProgressHooks {
 public:
  Cause ended() const override { return Cause::unpacked(cause.load()); }
  void on_long_wait(const Wait& wait, bool is_late) override {
    asked.push_back(wait.rank);
    late.push_back(is_late);
    if (on_asked) on_asked();
  }
  void note_long_wait_for(uint32_t rank) override { noted.push_back(rank); }
  bool observes_waits() const override { return observes; }
  void on_waited(const Wait& wait, int64_t began_ns, int64_t ended_ns) override {
    EXPECT_LE(began_ns, ended_ns);
    waited.push_back(wait.rank);
  }
  Cause on_timeout(const Wait& wait) override {
    timed_out.push_back(wait.rank);
    cause = Cause{ETIMEDOUT, wait.rank}.packed();
    return ended();
  }

  std::atomic<uint64_t> cause{0};
  std::vector<uint32_t> asked;
  std::vector<bool> late;  ///< at each of these
  std::function<void()> on_asked;
  std::vector<uint32_t> noted;
  std::vector<uint32_t> waited;
  std::vector<uint32_t> timed_out;
  bool observes = false;
};

CollectiveTask until(Wait wait) { co_return co_await wait; }

/// A word that is slept at.
struct Word {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};
  Wait reached(uint32_t target, uint32_t rank = 0) { return {&value, target, rank, &sleepers}; }
};

TEST(CclWait, IsOver_WordHasReachedTheValue_IsTrueAcrossTheWrap) {
  std::atomic<uint32_t> word{0};
  const auto is_over = [&](uint32_t now, uint32_t value) {
    word = now;
    return Wait{&word, value}.is_over();
  };
  EXPECT_TRUE(is_over(5, 5));
  EXPECT_TRUE(is_over(6, 5));
  EXPECT_FALSE(is_over(4, 5));
  EXPECT_TRUE(is_over(0, UINT32_MAX));
  EXPECT_FALSE(is_over(UINT32_MAX, 0));
  EXPECT_TRUE(is_over(0x80000000, 0x7fffffff));
  EXPECT_FALSE(is_over(0x7fffffff, 0x80000000));
  EXPECT_TRUE(is_over(0x7fffffff, 0)) << "half of all numbers ahead is still ahead";
  EXPECT_FALSE(is_over(0x80000000, 0));
}

TEST(CclWaiter, CountUp_RankSleeps_IsWoken) {
  for (const WaitRules& rules : {kSleepAtOnce, kCoresForAll}) {
    Word word;
    TestHooks hooks;
    ASSERT_NO_FATAL_FAILURE(expect_woken(
        [&](uint32_t round) {
          CollectiveTask steps = until(word.reached(round));
          return run_tasks(steps, rules, hooks, kLimitNs);
        },
        [&](uint32_t round) { count_up(word.value, round, word.sleepers, rules.fences()); }));
    EXPECT_EQ(word.sleepers, 0u);
  }
}

TEST(CclWaiter, Sleep_AtSeveralWords_IsWokenByAny) {
  Word words[3];
  TestHooks hooks;
  expect_woken(
      [&](uint32_t round) {
        Word& counted = words[round % 3];
        const uint32_t next = round / 3 + 1;
        for (int turn = 1; counted.value != next; ++turn) {
          const Wait waits[] = {words[0].reached(words[0].value + 1), words[1].reached(words[1].value + 1),
                                words[2].reached(words[2].value + 1)};
          if (counted.value != next) wait_a_turn(waits, kSleepAtOnce, hooks, turn, 0, kLimitNs);
        }
        return 0;
      },
      [&](uint32_t round) {
        Word& counted = words[round % 3];
        count_up(counted.value, round / 3 + 1, counted.sleepers, kSleepAtOnce.fences());
      });
  for (const Word& word : words) EXPECT_EQ(word.sleepers, 0u);
}

/// A sleep is by 64 words at most: who waits for more looks again soon.
TEST(CclWaiter, Sleep_MoreWordsThanASleepHas_LooksAgainSoon) {
  constexpr size_t kWords = 65;
  std::vector<Word> words(kWords);
  Word& last = words.back();
  TestHooks hooks;
  expect_woken(
      [&](uint32_t round) {
        std::vector<Wait> waits;
        for (Word& word : words) waits.push_back(word.reached(1));
        waits.back() = last.reached(round);
        for (int turn = 1; last.value != round; ++turn) wait_a_turn(waits, kSleepAtOnce, hooks, turn, 0, kLimitNs);
        return 0;
      },
      [&](uint32_t round) { count_up(last.value, round, last.sleepers, kSleepAtOnce.fences()); });
}

TEST(CclWaiter, RunTasks_LastOperationCompletesFirst_BothComplete) {
  progress::use_sleeper_fences();
  Word first;
  Word last;
  TestHooks hooks;
  std::thread counting([&] {
    const int64_t end = base::now_ns() + kLimitNs;
    while (last.sleepers == 0 && base::now_ns() < end) std::this_thread::yield();
    count_up(last.value, 1, last.sleepers, kSleepAtOnce.fences());
    count_up(first.value, 1, first.sleepers, kSleepAtOnce.fences());
  });
  CollectiveTask all[] = {until(first.reached(1)), until(last.reached(1))};
  EXPECT_EQ(run_tasks(all, kSleepAtOnce, hooks, kLimitNs), 0);
  counting.join();
  EXPECT_TRUE(all[0].is_done() && all[1].is_done());
}

TEST(CclWaiter, RunTasks_MoreOperationsThanASleepHasWords_AllComplete) {
  progress::use_sleeper_fences();
  constexpr uint32_t kWaits = 70;  // a sleep is by 64 words
  std::vector<Word> words(kWaits);
  std::vector<CollectiveTask> all;
  for (uint32_t i = 0; i < kWaits; ++i) all.push_back(until(words[i].reached(1, i)));
  std::thread counting([&] {
    for (uint32_t i = kWaits; i-- > 0;) {
      std::this_thread::yield();
      count_up(words[i].value, 1, words[i].sleepers, kSleepAtOnce.fences());
    }
  });
  TestHooks hooks;
  EXPECT_EQ(run_tasks(all, kSleepAtOnce, hooks, kLimitNs), 0);
  counting.join();
  EXPECT_TRUE(hooks.timed_out.empty());
  for (const Word& word : words) EXPECT_EQ(word.sleepers, 0u);
}

TEST(CclWaiter, RunTasks_RankIsWaitedForLong_IsProbedAndNamedAtTheTimeout) {
  Word there;
  there.value = 1;
  Word never;
  TestHooks hooks;
  CollectiveTask all[] = {until(there.reached(1, 4)), until(never.reached(1, 5))};
  EXPECT_EQ(run_tasks(all, kSleepAtOnce, hooks, 210 * kNsPerMs), ETIMEDOUT);
  EXPECT_EQ(hooks.timed_out, (std::vector<uint32_t>{5}));
  ASSERT_FALSE(hooks.asked.empty());
  for (const uint32_t rank : hooks.asked) EXPECT_EQ(rank, 5u);
  ASSERT_EQ(hooks.noted.size(), hooks.asked.size() + 1);
  EXPECT_EQ(hooks.noted.back(), kNoRank) << "it waits for no rank any more";
  for (size_t i = 0; i + 1 < hooks.noted.size(); ++i) EXPECT_EQ(hooks.noted[i], 5u);
  EXPECT_TRUE(all[0].is_done() && all[1].is_done());
  EXPECT_EQ(all[0].result(), 0);
  EXPECT_EQ(never.sleepers, 0u);
}

TEST(CclWaiter, RunTasks_HalfTheLimitHasPassed_IsLate) {
  Word word;
  TestHooks hooks;
  // No rank is probed before 100 ms.
  CollectiveTask late = until(word.reached(1, 5));
  EXPECT_EQ(run_tasks(late, kSleepAtOnce, hooks, 199 * kNsPerMs), ETIMEDOUT);
  ASSERT_FALSE(hooks.late.empty());
  for (const bool is_late : hooks.late) EXPECT_TRUE(is_late);
  TestHooks patient;
  patient.on_asked = [&] { count_up(word.value, 1, word.sleepers, kSleepAtOnce.fences()); };
  CollectiveTask early = until(word.reached(1, 5));
  EXPECT_EQ(run_tasks(early, kSleepAtOnce, patient, kLimitNs), 0);
  ASSERT_FALSE(patient.late.empty());
  for (const bool is_late : patient.late) EXPECT_FALSE(is_late);
}

TEST(CclWaiter, RunTasks_NothingToWaitFor_ProbesNoRank) {
  Word word;
  word.value = 3;
  TestHooks hooks;
  hooks.observes = true;
  CollectiveTask steps = until(word.reached(3));
  EXPECT_EQ(run_tasks(steps, kSleepAtOnce, hooks, kLimitNs), 0);
  EXPECT_TRUE(hooks.asked.empty() && hooks.noted.empty() && hooks.waited.empty());
}

TEST(CclWaiter, Wait_IsReportedToTheObserver) {
  Word word;
  TestHooks hooks;
  hooks.observes = true;
  std::thread counting([&] {
    while (word.sleepers == 0) std::this_thread::yield();
    count_up(word.value, 1, word.sleepers, kSleepAtOnce.fences());
  });
  CollectiveTask steps = until(word.reached(1, 9));
  EXPECT_EQ(run_tasks(steps, kSleepAtOnce, hooks, kLimitNs), 0);
  counting.join();
  ASSERT_FALSE(hooks.waited.empty());
  EXPECT_EQ(hooks.waited.front(), 9u);
}

TEST(CclWaiter, RunTasks_CommunicatorHasEnded_ReturnsItsError) {
  Word word;
  TestHooks hooks;
  hooks.cause = Cause{ECONNRESET, 2}.packed();
  CollectiveTask steps = until(word.reached(1));
  EXPECT_EQ(run_tasks(steps, kSleepAtOnce, hooks, kLimitNs), ECONNRESET);
  EXPECT_TRUE(steps.is_done());
}

TEST(CclWaiter, RunTasks_SeveralErrors_ReturnsTheFirst) {
  TestHooks hooks;
  const auto with = [](int result) -> CollectiveTask { co_return result; };
  CollectiveTask all[] = {with(0), with(EPROTO), with(EFAULT)};
  EXPECT_EQ(run_tasks(all, kSleepAtOnce, hooks, kLimitNs), EPROTO);
}

TEST(CclCause, PackedAndUnpacked_IsEqual) {
  for (const Cause& cause : {Cause{ECONNRESET, 0}, Cause{ETIMEDOUT, 77}, Cause{EPROTO, kNoRank}}) {
    const Cause back = Cause::unpacked(cause.packed());
    EXPECT_EQ(back.error, cause.error);
    EXPECT_EQ(back.rank, cause.rank);
    EXPECT_NE(cause.packed(), 0u);
  }
  EXPECT_FALSE(Cause::unpacked(0));
}

/// Ends when the arena says so.
class Ending final : public ProgressHooks {
 public:
  explicit Ending(ArenaHead& head) : head_(head) {}
  Cause ended() const override { return Cause::unpacked(head_.ended.load()); }
  Cause on_timeout(const Wait&) override { return ended(); }

 private:
  ArenaHead& head_;
};

TEST(CclArena, EndArena_Twice_KeepsTheFirstCauseAndWakesEverySleeper) {
  auto head = std::make_unique<ArenaHead>();
  // Ranks sleep at the mark, at the count of departed ranks, and at a line.
  std::atomic<uint32_t>* const words[] = {&head->mark, &head->departed, &head->lines[0].step,
                                          &head->lines[kSmallTurns - 1].step};
  for (std::atomic<uint32_t>* const word : words) {
    Ending hooks(*head);
    std::atomic<uint32_t> said{0};
    ASSERT_NO_FATAL_FAILURE(expect_woken(
        [&](uint32_t round) {
          CollectiveTask steps = until({word, 1, 0, &head->sleepers});
          if (run_tasks(steps, kSleepAtOnce, hooks, kLimitNs) != ECONNRESET) return 1;
          while (said != round) std::this_thread::yield();
          if (hooks.ended().rank != 3) return 1;
          head->ended = 0;
          return 0;
        },
        [&](uint32_t round) {
          end_arena(*head, {ECONNRESET, 3});
          end_arena(*head, {ETIMEDOUT, 4});
          said = round;
        }));
  }
}

// ---- turns of a communicator ----------------------------------------------------------------------------------------

class RecordingJob final : public Job {
 public:
  RecordingJob(std::vector<int>* order, int number) : order_(order), number_(number) {}
  int run() override {
    order_->push_back(number_);
    return number_;
  }

 private:
  std::vector<int>* order_;
  int number_;
};

TEST(CclExecutor, Wait_ForTheLastJob_RunsAllJobsInOrder) {
  std::vector<int> order;
  std::vector<std::shared_ptr<RecordingJob>> jobs;
  std::vector<int> expected;
  {
    Executor executor;
    ASSERT_TRUE(executor.try_take());
    for (int i = 0; i < 50; ++i) {
      jobs.push_back(std::make_shared<RecordingJob>(&order, i));
      expected.push_back(i);
      ASSERT_EQ(executor.add(jobs.back()), 0);
    }
    EXPECT_TRUE(order.empty()) << "somebody has the turn";
    executor.give_back();
    EXPECT_EQ(executor.wait(jobs[49]), 49);
    EXPECT_EQ(order, expected);
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(jobs[static_cast<size_t>(i)]->is_done());
      EXPECT_EQ(jobs[static_cast<size_t>(i)]->result(), i);
    }
    EXPECT_TRUE(executor.try_take());
    EXPECT_FALSE(executor.try_take());
    executor.give_back();
  }
}

/// Whether all threads of the process but this one sleep.
bool do_others_sleep() {
  const std::string own = std::to_string(syscall(SYS_gettid));
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    if (thread.path().filename() == own) continue;
    std::ifstream stat(thread.path() / "stat");
    std::string id;
    std::string name;
    std::string state;
    stat >> id >> name >> state;
    if (state != "S") return false;
  }
  return true;
}

TEST(CclExecutor, GiveBack_JobWaitsForTheTurn_WakesTheThread) {
  std::vector<int> order;
  Executor executor;
  const auto first = std::make_shared<RecordingJob>(&order, 1);
  ASSERT_EQ(executor.add(first), 0);
  const int64_t end = base::now_ns() + kLimitNs;
  while ((!first->is_done() || !do_others_sleep()) && base::now_ns() < end) std::this_thread::yield();
  ASSERT_TRUE(executor.try_take());
  const auto second = std::make_shared<RecordingJob>(&order, 2);
  ASSERT_EQ(executor.add(second), 0);
  // Its thread has looked, and has not had the turn.
  while (!do_others_sleep() && base::now_ns() < end) std::this_thread::yield();
  EXPECT_FALSE(second->is_done());
  executor.give_back();
  while (!second->is_done() && base::now_ns() < end) std::this_thread::yield();
  EXPECT_TRUE(second->is_done());
  (void)executor.wait(second);
}

TEST(CclExecutor, Take_WhileAnotherThreadHasTheTurn_SleepsUntilItIsGivenBack) {
  Executor executor;
  ASSERT_TRUE(executor.try_take());
  test::Sleeper taker;
  std::atomic<bool> taken{false};
  std::thread takes([&] {
    taker.is_this_thread();
    executor.take();
    taken = true;
  });
  EXPECT_TRUE(taker.await_asleep(base::now_ns() + kLimitNs));
  EXPECT_FALSE(taken);
  executor.give_back();
  takes.join();
  EXPECT_FALSE(executor.try_take()) << "it has the turn";
  executor.give_back();
}

TEST(CclExecutor, TryTake_JobWaits_Fails) {
  std::vector<int> order;
  Executor executor;
  ASSERT_TRUE(executor.try_take());
  const auto job = std::make_shared<RecordingJob>(&order, 1);
  ASSERT_EQ(executor.add(job), 0);
  EXPECT_FALSE(executor.try_take());
  executor.give_back();
  // No thread waits for it: the executor's own thread runs it.
  const int64_t end = base::now_ns() + kLimitNs;
  while (!job->is_done() && base::now_ns() < end) std::this_thread::yield();
  EXPECT_TRUE(job->is_done());
}

}  // namespace
}  // namespace nupa::ccl
