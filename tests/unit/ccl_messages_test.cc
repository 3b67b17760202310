// SPDX-License-Identifier: Apache-2.0
/// The thread that moves messages while nobody waits for one.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <thread>

#include "ccl/message/messages.h"

namespace nupa::ccl {
namespace {

/// Of a rank that is alone.
class NoWays final : public LaneGroup::Ways {
 public:
  void want(uint32_t) override {}
  Wait ready(uint32_t) override { return {}; }
  Lane& lane(uint32_t) override { std::abort(); }
  uint32_t ahead() const override { return 1; }
  bool is_used(uint32_t) const override { return false; }
};

/// Counts how often another thread than the test's has asked for the end.
class AskedByThread final : public Surroundings {
 public:
  Cause ended() const override {
    if (std::this_thread::get_id() != test_) ++asked;
    return {};
  }
  Cause on_timeout(const Wait&) override { return {}; }

  mutable std::atomic<int> asked{0};

 private:
  const std::thread::id test_ = std::this_thread::get_id();
};

/// The kernel ends this process when a thread has it put a fence into all others. False: that cannot be had.
bool die_at_fence_into_others() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),  // the lower half
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog all{static_cast<unsigned short>(std::size(program)), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0;
}

/// How a process ends whose thread sleeps for a message: its status, or minus the signal.
int end_of_sleeper(const WaitRules& rules) {
  constexpr int kNoFilter = 2;
  constexpr int64_t kLimitNs = 10'000'000'000;
  const pid_t child = fork();
  if (child == 0) {
    if (!die_at_fence_into_others()) _exit(kNoFilter);
    NoWays ways;
    AskedByThread around;
    Messages messages(0, 1, ways, around, rules, kLimitNs);
    if (messages.begin_alone(std::make_shared<Message>()) != 0) _exit(1);
    // Once for its look at the messages, and once more before it sleeps.
    while (around.asked < 2) std::this_thread::yield();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/// A rank that counts a word up executes no fence where each rank has a core: the store may be seen after its load of
/// the sleepers, and then nobody wakes the thread, unless the thread has the kernel order them.
TEST(CclMessagesThread, WhereEachRankHasACore_OrdersTheStoresOfOthersBeforeItSleeps) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "it starts no threads in a child of a process with threads";
#endif
  const int end = end_of_sleeper({0, false});
  if (end == 2) GTEST_SKIP() << "system calls cannot be forbidden";
  EXPECT_EQ(end, -SIGSYS);
  EXPECT_EQ(end_of_sleeper({0, true}), 0) << "the others execute fences";
}

}  // namespace
}  // namespace nupa::ccl
