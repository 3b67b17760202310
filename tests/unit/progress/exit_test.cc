// SPDX-License-Identifier: Apache-2.0
// Actions at exit. Each test runs in its own process, where no action is registered yet.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <mutex>

#include "progress/lifecycle.h"
#include "progress/waiter.h"
#include "../../support/sanitizers.h"

namespace nupa::progress {
namespace {

constexpr unsigned kLimitSeconds = 60;

class ProgressExit : public ::testing::Test {
 protected:
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

/// Words on standard error, which the tests compare.
template <char kLetter>
void record(void* = nullptr) {
  const char letter = kLetter;
  if (write(STDERR_FILENO, &letter, 1) != 1) std::_Exit(99);
}

char g_object[1000];

/// Actions whose objects are the places of g_object.
void join(ExitStage stage, void (*run)(void*), void (*at_once)(void*) = nullptr) {
  static size_t next = 0;
  alarm(kLimitSeconds);  // a process that hangs is killed by it
  if (at_exit(stage, {run, &g_object[next++], at_once}) != 0) std::_Exit(98);
}

std::mutex g_held;
void wait_for_the_lock(void*) { const std::lock_guard lock(g_held); }

int threads() {
  int count = 0;
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* task = readdir(tasks)) count += task->d_name[0] == '.' ? 0 : 1;
  closedir(tasks);
  return count;
}

TEST_F(ProgressExit, Exit_RunsTheStagesInOrder) {
  EXPECT_EXIT(
      {
        join(ExitStage::kLauncher, record<'f'>);
        join(ExitStage::kHost, record<'d'>);
        join(ExitStage::kStreams, record<'a'>);
        join(ExitStage::kTraces, record<'e'>);
        join(ExitStage::kPackets, record<'b'>);
        join(ExitStage::kConnections, record<'c'>);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^abcdef$");
}

TEST_F(ProgressExit, AtOnce_RunsInTheExitingThreadBeforeAll) {
  EXPECT_EXIT(
      {
        static const pid_t me = gettid();
        join(ExitStage::kStreams, [](void*) { gettid() == me ? record<'!'>() : record<'a'>(); });
        join(
            ExitStage::kHost, [](void*) { gettid() == me ? record<'!'>() : record<'b'>(); },
            [](void*) { gettid() == me ? record<'1'>() : record<'!'>(); });
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^1ab$");
}

TEST_F(ProgressExit, RunExitActions_BeforeExit_RunsThemOnce) {
  EXPECT_EXIT(
      {
        join(ExitStage::kHost, record<'b'>);
        join(ExitStage::kStreams, record<'a'>);
        run_exit_actions();
        record<'|'>();
        run_exit_actions();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^ab\\|$");
}

TEST_F(ProgressExit, WithoutExit_NoActionRuns) {
  EXPECT_EXIT(
      {
        join(ExitStage::kHost, record<'a'>);
        record<'|'>();
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "^\\|$");
}

TEST_F(ProgressExit, ForgottenAction_DoesNotRunAndItsThreadEnds) {
  if (nupa::test::kThreadSanitizer)
    GTEST_SKIP() << "ThreadSanitizer has a thread of its own, and no new ones after a fork";
  EXPECT_EXIT(
      {
        const int before = threads();
        join(ExitStage::kHost, record<'a'>);
        join(ExitStage::kHost, record<'b'>);
        if (threads() != before + 1) std::_Exit(1);
        forget_at_exit(&g_object[1]);
        forget_at_exit(&g_object[1]);
        if (threads() != before + 1) std::_Exit(2);
        forget_at_exit(&g_object[0]);
        if (!wait_for([&] { return threads() == before; }, kPeerPolicy, Deadline::in_ms(20'000))) std::_Exit(3);
        join(ExitStage::kHost, record<'c'>);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^c$");
}

TEST_F(ProgressExit, AllActionsForgotten_ExitDoesNotSleep) {
  EXPECT_EXIT(
      {
        join(ExitStage::kHost, record<'!'>);
        forget_at_exit(&g_object[0]);
        const auto sleeps = [] {
          rusage usage{};
          getrusage(RUSAGE_THREAD, &usage);
          return usage.ru_nvcsw;
        };
        const long before = sleeps();
        run_exit_actions();
        if (sleeps() == before) record<'a'>();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^a$");
}

TEST_F(ProgressExit, AtExit_HasRoomForSixtyFourAStage) {
  EXPECT_EXIT(
      {
        for (int i = 0; i < 64; ++i) join(ExitStage::kTraces, record<'x'>);
        if (at_exit(ExitStage::kTraces, {record<'y'>, &g_object[999]}) != ENOMEM) std::_Exit(1);
        join(ExitStage::kLauncher, record<'|'>);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^x{64}\\|$");
}

TEST_F(ProgressExit, ActionThatWaitsForALockOfTheExitingThread_IsLeftAndTheOthersRun) {
  EXPECT_EXIT(
      {
        join(ExitStage::kStreams, wait_for_the_lock);
        join(ExitStage::kConnections, wait_for_the_lock);
        join(ExitStage::kHost, record<'h'>);
        join(ExitStage::kLauncher, wait_for_the_lock);
        signal(SIGTERM, [](int) { std::exit(7); });
        const std::lock_guard lock(g_held);
        raise(SIGTERM);
      },
      ::testing::ExitedWithCode(7), "^h$");
}

TEST_F(ProgressExit, ActionThatExtendsTheEnd_IsWaitedFor) {
  EXPECT_EXIT(
      {
        join(ExitStage::kHost, [](void*) {
          put_off_exit(Deadline::in_ns(kNsPerSecond * kLimitSeconds));
          sleep_for(3 * kActionNs);  // sleep: the action takes longer than one may without putting off the end
          record<'h'>();
        });
        join(ExitStage::kTraces, record<'t'>);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^ht$");
}

TEST_F(ProgressExit, ActionStuckAfterItExtendedTheEnd_IsLeft) {
  EXPECT_EXIT(
      {
        join(ExitStage::kHost, [](void*) {
          put_off_exit(Deadline::in_ns(2 * kActionNs));
          wait_for_the_lock(nullptr);
        });
        join(ExitStage::kTraces, record<'t'>);
        const std::lock_guard lock(g_held);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^t$");
}

TEST_F(ProgressExit, ExitInAnAction_EndsTheProcess) {
  EXPECT_EXIT(
      {
        join(ExitStage::kHost, [](void*) { std::_Exit(5); });
        join(ExitStage::kTraces, record<'t'>);
        std::exit(0);
      },
      ::testing::ExitedWithCode(5), "^$");
}

TEST_F(ProgressExit, Child_RunsItsOwnActionsAndNoneOfItsParents) {
  if (nupa::test::kSanitized)
    GTEST_SKIP() << "a sanitizer allows no new thread in a child, or its allocator's locks stay taken there";
  EXPECT_EXIT(
      {
        join(ExitStage::kHost, record<'p'>);
        const pid_t child = fork();
        if (child == 0) {
          run_exit_actions();
          join(ExitStage::kTraces, record<'c'>);
          std::exit(0);
        }
        int status = -1;
        if (waitpid(child, &status, 0) != child || status != 0) std::_Exit(1);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^cp$");
}

TEST_F(ProgressExit, ChildThatSharesItsParentsMemory_RunsNothing) {
  if (nupa::test::kThreadSanitizer)
    GTEST_SKIP() << "ThreadSanitizer has a thread of its own, and no new ones after a fork";
  EXPECT_EXIT(
      {
        join(ExitStage::kHost, record<'p'>);
        alignas(16) static char stack[1 << 16];
        const pid_t child = clone(
            [](void*) {
              run_exit_actions();
              return 0;
            },
            stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr);
        int status = -1;
        if (waitpid(child, &status, 0) != child || status != 0) std::_Exit(1);
        record<'|'>();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^\\|p$");
}

}  // namespace
}  // namespace nupa::progress
