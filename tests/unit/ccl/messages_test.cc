// SPDX-License-Identifier: Apache-2.0
/// Tests of the thread that moves messages while no thread waits for one, and of the limit of a wait.
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
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <thread>

#include "ccl/p2p/messages.h"
#include "../../support/sanitizers.h"

namespace nupa::ccl {
namespace {

/// The provider of a rank that has no peers.
class NoChannels final : public ChannelGroup::Provider {
 public:
  void want(uint32_t) override {}
  Wait ready(uint32_t) override { return {}; }
  MessageChannel& channel(uint32_t) override { std::abort(); }
  uint32_t ahead() const override { return 1; }
  bool is_used(uint32_t) const override { return false; }
};

/// Counts how often another thread than the test's has asked for the end.
class CountingHooks final : public ProgressHooks {
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

/// The kernel ends this process when a thread has it put a fence into all others. False: there is no such filter.
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

/// Exit status of a process whose thread sleeps for a message, or minus the signal.
int end_of_sleeper(const WaitRules& rules) {
  constexpr int kNoFilter = 2;
  constexpr int64_t kLimitNs = 10'000'000'000;
  const pid_t child = fork();
  if (child == 0) {
    if (!die_at_fence_into_others()) _exit(kNoFilter);
    NoChannels provider;
    CountingHooks hooks;
    Messages messages(0, 1, provider, hooks, rules, kLimitNs);
    if (messages.begin_alone(std::make_shared<Message>()) != 0) _exit(1);
    // Once for its look at the messages, and once more before it sleeps.
    while (hooks.asked < 2) std::this_thread::yield();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/// A channel by which a message of one byte a piece comes, each piece when it is brought.
class SlowChannel final : public MessageChannel {
 public:
  explicit SlowChannel(uint64_t bytes) { std::memcpy(fragment_, &bytes, sizeof bytes); }
  void bring() { ++brought_; }

  size_t fragment_bytes() const override { return sizeof fragment_; }
  Wait can_send() const override { return {&brought_, brought_ + 1}; }  // never
  std::byte* room() override { return nullptr; }
  void send(size_t) override {}
  bool send_zero_copy(const void*, size_t) override { return false; }
  bool has_zero_copy_sends() const override { return false; }
  Wait can_receive() const override { return {&brought_, taken_ + 1}; }
  const std::byte* front() const override { return taken_ == 0 ? fragment_ : fragment_ + kHeader; }
  size_t front_bytes() const override { return taken_ == 0 ? kHeader + 1 : 1; }
  void pop() override { ++taken_; }
  bool is_used() const override { return true; }
  void pop_last() override {}
  Wait all_arrived() const override { return {&brought_, brought_}; }

 private:
  static constexpr size_t kHeader = 16;  // message_peer.h: bytes(8), tag(4), type(1)
  std::byte fragment_[kHeader + 1] = {};
  std::atomic<uint32_t> brought_{0};
  uint32_t taken_ = 0;
};

/// Of two ranks, one of which sends by that channel.
class SlowProvider final : public ChannelGroup::Provider {
 public:
  explicit SlowProvider(SlowChannel& channel) : channel_(channel) {}
  void want(uint32_t) override {}
  Wait ready(uint32_t) override { return {&is_there_, 1}; }
  MessageChannel& channel(uint32_t) override { return channel_; }
  uint32_t ahead() const override { return 1; }
  bool is_used(uint32_t) const override { return true; }

 private:
  SlowChannel& channel_;
  std::atomic<uint32_t> is_there_{1};
};

/// Brings a piece at each look, which takes its time.
class SlowHooks final : public ProgressHooks {
 public:
  SlowHooks(SlowChannel& channel, std::chrono::milliseconds pause) : channel_(channel), pause_(pause) {}
  Cause ended() const override { return {}; }
  void look() override {
    std::this_thread::sleep_for(pause_);  // sleep: a rank that looks seldom
    channel_.bring();
  }
  Cause on_timeout(const Wait&) override {
    ++timeouts;
    return {};
  }

  int timeouts = 0;

 private:
  SlowChannel& channel_;
  const std::chrono::milliseconds pause_;
};

TEST(CclMessagesWait, Wait_MessageThatMovesForLongerThanTheLimit_DoesNotTimeOut) {
  // The first piece comes as the receive begins. The others take more than the limit, of which each has the whole.
  constexpr uint64_t kPieces = 6;
  constexpr std::chrono::milliseconds kPause{250};
  constexpr int64_t kLimitNs = 1'000'000'000;
  SlowChannel channel(kPieces);
  SlowProvider provider(channel);
  SlowHooks hooks(channel, kPause);
  Messages messages(0, 2, provider, hooks, {0, true}, kLimitNs);
  std::byte room[kPieces];
  const auto message =
      std::make_shared<Message>(MessageTask{.peer = 1, .tag = kAnyTag, .to = room, .bytes = sizeof room});
  messages.begin(message);
  EXPECT_EQ(messages.wait(message), 0);
  EXPECT_EQ(message->bytes, kPieces);
  EXPECT_EQ(hooks.timeouts, 0);
}

/// No rank sends. Records each long wait, and whether it was late.
class SilentHooks final : public ProgressHooks {
 public:
  Cause ended() const override { return Cause::unpacked(cause_); }
  void on_long_wait(const Wait&, bool is_late) override { late.push_back(is_late); }
  Cause on_timeout(const Wait&) override {
    cause_ = Cause{ETIMEDOUT, 1}.packed();
    return ended();
  }

  std::vector<bool> late;

 private:
  uint64_t cause_ = 0;
};

TEST(CclMessagesWait, Wait_HalfTheLimitHasPassed_IsLate) {
  // The first time after 100 ms, then each 100 ms.
  for (const auto& [limit_ns, is_late] : {std::pair{int64_t{199'000'000}, true}, {int64_t{1'000'000'000}, false}}) {
    SlowChannel channel(1);
    SlowProvider provider(channel);
    SilentHooks hooks;
    Messages messages(0, 2, provider, hooks, {0, true}, limit_ns);
    std::byte room[1];
    const auto message =
        std::make_shared<Message>(MessageTask{.peer = 1, .tag = kAnyTag, .to = room, .bytes = sizeof room});
    messages.begin(message);
    EXPECT_EQ(messages.wait(message), ETIMEDOUT);
    ASSERT_FALSE(hooks.late.empty());
    EXPECT_EQ(hooks.late.front(), is_late);
    EXPECT_TRUE(hooks.late.back());
  }
}

/// Of a communicator that has ended. Counts how often another thread than the test's has asked.
class Ended final : public ProgressHooks {
 public:
  Cause ended() const override {
    if (std::this_thread::get_id() != test_) ++asked;
    return {ECONNRESET, 0};
  }
  Cause on_timeout(const Wait&) override { return {}; }

  mutable std::atomic<int> asked{0};

 private:
  const std::thread::id test_ = std::this_thread::get_id();
};

TEST(CclMessagesThread, Thread_AfterTheEndOfTheCommunicator_Sleeps) {
  NoChannels provider;
  Ended hooks;
  Messages messages(0, 1, provider, hooks, {0, true}, 10'000'000'000);
  const auto message = std::make_shared<Message>(MessageTask{.peer = kNoRank, .tag = kAnyTag});
  ASSERT_EQ(messages.begin_alone(message), 0);
  ASSERT_EQ(messages.wait(message), ECONNRESET);
  const int before = hooks.asked;
  // sleep: a thread that does not sleep would look more often
  for (int i = 0; i < 20; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_LT(hooks.asked - before, 20) << "the thread looks again and again";
}

/// A rank that counts a word up executes no fence where each rank has a core: the store may be seen after its load of
/// the sleepers, and then nobody wakes the thread, unless the thread has the kernel order them.
TEST(CclMessagesThread, Thread_EachRankHasACore_OrdersTheStoresOfOthersBeforeItSleeps) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  const int end = end_of_sleeper({0, false});
  if (end == 2) GTEST_SKIP() << "system calls cannot be forbidden";
  EXPECT_EQ(end, -SIGSYS);
  EXPECT_EQ(end_of_sleeper({0, true}), 0) << "the others execute fences";
}

}  // namespace
}  // namespace nupa::ccl
