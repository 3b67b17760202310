// SPDX-License-Identifier: Apache-2.0
#include "progress/thread.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <set>
#include <string>

#include <nupa/device.h>

#include "../../support/sanitizers.h"
#include "progress/waiter.h"

namespace nupa::progress {
namespace {

std::string own_name() {
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  return name;
}

TEST(ProgressThread, Start_NewThread_HasItsNameAndExactTimers) {
  Thread thread;
  std::string name;
  int slack_ns = 0;
  ASSERT_TRUE(thread.start("nupa-0123456789", [&] {
    name = own_name();
    slack_ns = prctl(PR_GET_TIMERSLACK);
  }));
  thread.join();
  EXPECT_EQ("nupa-0123456789", name);
  EXPECT_EQ(1, slack_ns);
}

/// The arenas of malloc().
size_t number_of_arenas() {
  char text[1 << 14] = {};
  FILE* const file = fmemopen(text, sizeof text, "w");
  malloc_info(0, file);
  fclose(file);
  size_t found = 0;
  for (const char* at = text; (at = std::strstr(at, "<heap nr=")) != nullptr; ++at) ++found;
  return found;
}

TEST(ProgressThread, Start_NewThread_HasItsArena) {
  if (nupa::test::kSanitized) GTEST_SKIP() << "the sanitizer's malloc() has no arenas";
  // In a process of its own: threads of earlier tests leave arenas behind, which a new thread would take.
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const size_t before = number_of_arenas();
        Thread thread;
        std::promise<void> end;
        const auto started = thread.start("nupa-test", [&] { end.get_future().wait(); });
        const size_t after = number_of_arenas();
        end.set_value();
        thread.join();
        exit(started ? static_cast<int>(after - before) : 9);
      },
      ::testing::ExitedWithCode(1), "");
}

TEST(ProgressThread, Start_NewThread_TakesNoSignalsButThoseOfFaults) {
  sigset_t before;
  sigemptyset(&before);
  sigaddset(&before, SIGUSR2);
  ASSERT_EQ(0, pthread_sigmask(SIG_SETMASK, &before, nullptr));
  sigset_t inside;
  Thread thread;
  ASSERT_TRUE(thread.start("nupa-test", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &inside); }));
  thread.join();
  sigset_t after;
  ASSERT_EQ(0, pthread_sigmask(SIG_SETMASK, nullptr, &after));
  constexpr int kFirstOfTheCLibrary = 32;
  for (int signal = 1; signal < kFirstOfTheCLibrary; ++signal) {
    if (signal != SIGKILL && signal != SIGSTOP) {
      EXPECT_EQ(signal != SIGSEGV && signal != SIGBUS, sigismember(&inside, signal) == 1) << signal;
    }
    EXPECT_EQ(signal == SIGUSR2, sigismember(&after, signal) == 1) << signal;
  }
  sigemptyset(&before);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(ProgressThread, HasStarted_BetweenStartAndJoinOnly_IsTrue) {
  Thread thread;
  EXPECT_FALSE(thread.has_started());
  ASSERT_TRUE(thread.start("nupa-test", [] {}));
  EXPECT_TRUE(thread.has_started());
  thread.join();
  EXPECT_FALSE(thread.has_started());
}

TEST(ProgressThread, Start_AfterAJoin_StartsAnother) {
  Thread thread;
  int count = 0;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(thread.start("nupa-test", [&] { ++count; }));
    thread.join();
  }
  EXPECT_EQ(2, count);
}

TEST(ProgressThread, Join_InAForksChild_Returns) {
  std::atomic<bool> ends{false};
  auto thread = std::make_unique<Thread>();
  ASSERT_TRUE(
      thread->start("nupa-test", [&] { wait_for([&] { return ends.load(); }, kPeerPolicy, Deadline::never()); }));
  for (const bool joins : {true, false}) {
    const pid_t child = fork();
    if (child == 0) {
      // The destructor would end a process whose thread it is.
      if (joins) thread->join();
      thread.reset();
      _exit(0);
    }
    int status = 1;
    EXPECT_EQ(child, waitpid(child, &status, 0));
    EXPECT_EQ(0, status);
  }
  ends = true;
  thread->join();
}

TEST(ProgressThread, StartDetached_Runs) {
  std::atomic<bool> ran{false};
  std::string name;
  ASSERT_TRUE(start_detached("nupa-test", [&] {
    name = own_name();
    ran = true;
  }));
  EXPECT_TRUE(wait_for([&] { return ran.load(); }, kPeerPolicy, Deadline::in_ms(60'000)));
  EXPECT_EQ("nupa-test", name);
}

std::set<std::string> tasks() {
  std::set<std::string> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) found.insert(task.path());
  return found;
}

/// Names of this process's threads that are not in `before`.
std::multiset<std::string> names_of_new_threads(const std::set<std::string>& before) {
  std::multiset<std::string> names;
  for (const std::string& task : tasks()) {
    std::string name;
    if (!before.contains(task) && std::getline(std::ifstream(task + "/comm"), name)) names.insert(name);
  }
  return names;
}

TEST(ProgressThreads, OfAProcessWithADevice_AreNamedNupa) {
  const auto before = tasks();
  const auto devices = list_devices();
  ASSERT_FALSE(devices.empty());
  const auto device = open_device(devices.front().name);
  ASSERT_TRUE(device) << device.error().what();
  std::multiset<std::string> names;
  // A thread gives itself its name.
  wait_for(
      [&] {
        names = names_of_new_threads(before);
        return !names.empty() &&
               std::all_of(names.begin(), names.end(), [](const auto& name) { return name.starts_with("nupa-"); });
      },
      kPeerPolicy, Deadline::in_ms(20'000));
  EXPECT_TRUE(names.contains("nupa-host"));
  for (const std::string& name : names) EXPECT_TRUE(name.starts_with("nupa-")) << name;
}

}  // namespace
}  // namespace nupa::progress
