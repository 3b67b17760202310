// SPDX-License-Identifier: Apache-2.0
// Participants in fork(): their order, and what other threads can do during it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "base/shared_file.h"
#include "host/node.h"
#include "../host/fixture.h"
#include "progress/lifecycle.h"
#include "progress/of_process.h"
#include "progress/waiter.h"
#include "memory/fork_snapshot.h"
#include "transport/roce/port/port.h"

namespace nupa::progress {
namespace {

constexpr unsigned kForkLimitSeconds = 60;

/// Runs `body` in a child, whose exit status it returns; killed by a signal: 1000 and its number.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kForkLimitSeconds);  // a process that hangs is killed by it
    _exit(body());
  }
  int status = -1;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

std::string g_record;

/// Says when it is called: 'a' before, 'A' in the parent, '1' in the child; the next one 'b', and so on.
class Recorder final : public ForkParticipant {
 public:
  Recorder(ForkStage stage, char number, bool stays = true) : number_(number), stays_(stays) {
    EXPECT_EQ(0, join_forks(stage, this));
  }
  ~Recorder() override { leave_forks(this); }
  void before_fork() override { g_record += static_cast<char>('a' + number_); }
  void in_parent() override { g_record += static_cast<char>('A' + number_); }
  bool in_child() override {
    g_record += static_cast<char>('1' + number_);
    return stays_;
  }

 private:
  const char number_;
  const bool stays_;
};

class ProgressFork : public ::testing::Test {
 protected:
  void SetUp() override { g_record.clear(); }
};

TEST_F(ProgressFork, Stages_RunInOrder_AndInReverseInTheParent) {
  const Recorder descriptors(ForkStage::kDescriptors, 5), events(ForkStage::kEvents, 4), host(ForkStage::kHost, 3),
      packets(ForkStage::kPackets, 2), memory(ForkStage::kMemory, 0), second(ForkStage::kMemory, 1);
  EXPECT_EQ(0, in_child([] { return g_record == "abcdef123456" ? 0 : 1; }));
  EXPECT_EQ("abcdefFEDCBA", g_record);
}

TEST_F(ProgressFork, TemporaryParticipant_IsNotCalledInForksOfTheChild) {
  const Recorder goes(ForkStage::kHost, 0, false), stays(ForkStage::kHost, 1);
  EXPECT_EQ(0, in_child([] {
              g_record.clear();
              const int child = in_child([] { return g_record == "b2" ? 0 : 1; });
              return child == 0 && g_record == "bB" ? 0 : 1;
            }));
}

/// A page that this process shares with its children.
class SharedPage {
 public:
  static constexpr size_t kBytes = 4096;
  SharedPage() {
    EXPECT_NE(MAP_FAILED, at_);
    *at_ = 1;
  }
  ~SharedPage() { munmap(at_, kBytes); }
  int* at() const { return at_; }

 private:
  int* const at_ = static_cast<int*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
};

TEST_F(ProgressFork, BlankMapping_IsZeroAndPrivateInTheChild) {
  const SharedPage page;
  blank_in_children(page.at(), SharedPage::kBytes);
  EXPECT_EQ(0, in_child([&] {
              const bool is_blank = *page.at() == 0;
              *page.at() = 2;
              // A child of it has its parent's.
              return is_blank ? in_child([&] { return *page.at() == 2 ? 0 : 1; }) : 1;
            }));
  EXPECT_EQ(1, *page.at());
  forget_mapping_for_children(page.at());
}

TEST_F(ProgressFork, ForgottenMapping_StaysShared) {
  const SharedPage page;
  blank_in_children(page.at(), SharedPage::kBytes);
  forget_mapping_for_children(page.at());
  EXPECT_EQ(0, in_child([&] {
              *page.at() = 2;
              return 0;
            }));
  EXPECT_EQ(2, *page.at());
}

struct Guarded {
  std::mutex mutex;
  int value = 7;
};

TEST_F(ProgressFork, RenewedValue_IsNewInAChildThoughAThreadHoldsItsLock) {
  static auto& renewed = *new RenewedInChildren<Guarded>;
  Guarded& parents = renewed.get();
  std::unique_lock held(parents.mutex);  // never given back in the child
  parents.value = 8;
  EXPECT_EQ(0, in_child([] {
              Guarded& own = renewed.get();
              const std::lock_guard lock(own.mutex);
              return own.value == 7 ? 0 : 1;
            }));
  EXPECT_EQ(&parents, &renewed.get());
  EXPECT_EQ(8, parents.value);
}

TEST_F(ProgressFork, ForkMutex_IsFreeInAChildThoughThreadsTakeIt) {
  static auto& mutex = *new ForkMutex;
  std::atomic<bool> ends{false};
  std::atomic<int> turns{0};
  std::thread takes([&] {
    while (!ends) {
      const std::lock_guard lock(mutex);
      ++turns;
    }
  });
  for (int i = 0; i < 100; ++i) {
    const int before = turns;
    EXPECT_EQ(0, in_child([] {
                const std::lock_guard lock(mutex);
                return 0;
              }));
    while (turns == before) sleep_for(kNsPerMs / 10);
  }
  ends = true;
  takes.join();
}

TEST_F(ProgressFork, SharedObject_IsNotDestroyedInAChild) {
  struct Counted {
    explicit Counted(int* destroyed) : count(destroyed) {}
    ~Counted() { ++*count; }
    int* const count;
  };
  int destroyed = 0;
  std::shared_ptr<Counted> shared = shared_in_process(new Counted(&destroyed));
  EXPECT_EQ(0, in_child([&] {
              shared.reset();
              int own = 0;
              shared_in_process(new Counted(&own)).reset();
              return destroyed == 0 && own == 1 ? 0 : 1;
            }));
  shared.reset();
  EXPECT_EQ(1, destroyed);
}

TEST_F(ProgressFork, ParticipantThatHasLeft_IsNotCalled) {
  { const Recorder left(ForkStage::kHost, 0); }
  EXPECT_EQ(0, in_child([] { return 0; }));
  EXPECT_EQ("", g_record);
}

TEST_F(ProgressFork, Generation_DiffersInTheChild) {
  const uint32_t here = process_generation();
  const OfThisProcess object;
  EXPECT_EQ(0, in_child([&] {
              if (object.holds() || process_generation() != here + 1) return 1;
              const OfThisProcess own;
              return own.holds() ? 0 : 2;
            }));
  EXPECT_TRUE(object.holds());
  EXPECT_EQ(here, process_generation());
}

/// Memory whose part in a fork lasts until it is let go.
class SlowMemory final : public memory::ForkParticipant {
 public:
  SlowMemory(bool before, bool in_parent) : before_(before), in_parent_(in_parent) {
    EXPECT_EQ(0, memory::join_forks(this));
  }
  ~SlowMemory() override { memory::leave_forks(this); }
  void before_fork() override { hold(before_); }
  void after_fork_in_parent() override { hold(in_parent_); }
  void after_fork_in_child() override {}
  bool is_held() const { return held_; }
  void let_go() { go_on_ = true; }

 private:
  void hold(bool wanted) {
    if (!wanted) return;
    held_ = true;
    while (!go_on_) sleep_for(1'000'000);
  }
  const bool before_, in_parent_;
  std::atomic<bool> held_{false}, go_on_{false};
};

class Quiet final : public host::NodeEvents {
 public:
  void on_attention() override {}
  void on_peer_exit(host::Peer&) override {}
  void on_payload(host::Peer&, const host::Payload&) override {}
};

/// In a process of its own: a node and a port, and a fork whose memory is slow. 0: both were usable meanwhile.
int use_beside_a_fork(bool before, bool in_parent) {
  const host::test::Folder folder;
  auto file = base::make_shared_file("nupa-fork-test");
  Quiet events;
  auto node = host::Node::open(file->get(), {}, events);
  auto socket = net::UdpSocket::open(0, 1 << 16);
  if (!node || !socket) return 1;
  auto port = roce::Port::open(std::move(*socket));
  if (!port) return 2;
  SlowMemory memory(before, in_parent);
  std::thread forks([] { in_child([] { return 0; }); });
  while (!memory.is_held()) sleep_for(1'000'000);
  (*node)->peers();
  (*port)->barrier();
  memory.let_go();
  forks.join();
  return 0;
}

TEST_F(ProgressFork, ForkThatWaitsForMemory_LeavesNodeAndPortFree) {
  EXPECT_EQ(0, in_child([] { return use_beside_a_fork(true, false); }));
}

TEST_F(ProgressFork, ForkWhileTheChildCopies_LeavesNodeAndPortFree) {
  EXPECT_EQ(0, in_child([] { return use_beside_a_fork(false, true); }));
}

}  // namespace
}  // namespace nupa::progress
