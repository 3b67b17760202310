// SPDX-License-Identifier: Apache-2.0
/// Tests of registered memory with signals and fork().
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>

#include "base/unique_fd.h"
#include "memory/fork_snapshot.h"
#include "memory/signal_hold.h"
#include "memory/write_guard.h"
#include "region_test_support.h"
#include "rules.h"

namespace nupa::memory::testing {
namespace {

// Signals.

TEST(RegionSignalHold, SignalHold_SignalMeanwhile_IsHandledAfterwardsAndTheMaskIsRestored) {
  static std::atomic<int> handled{0};
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) { ++handled; };
  ASSERT_EQ(0, sigaction(SIGUSR1, &action, &before));
  sigset_t mask, after;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR2);
  ASSERT_EQ(0, pthread_sigmask(SIG_SETMASK, &mask, nullptr));
  {
    const SignalHold hold;
    ASSERT_EQ(0, pthread_kill(pthread_self(), SIGUSR1));
    EXPECT_EQ(0, handled);
  }
  EXPECT_EQ(1, handled);
  ASSERT_EQ(0, pthread_sigmask(SIG_SETMASK, nullptr, &after));
  EXPECT_EQ(1, sigismember(&after, SIGUSR2));
  EXPECT_EQ(0, sigismember(&after, SIGUSR1));
  sigemptyset(&mask);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST(RegionSignalHold, SignalHold_FileSizeSignalMeanwhile_IsDiscarded) {
  EXPECT_EQ(0, in_child([] {
              signal(SIGXFSZ, SIG_DFL);
              {
                const SignalHold hold;
                pthread_kill(pthread_self(), SIGXFSZ);
              }
              return 0;  // it would have ended the process
            }));
}

TEST(RegionSignalHold, SignalHold_FileSizeSignalPendingBefore_IsKept) {
  EXPECT_EQ(1000 + SIGXFSZ, in_child([] {
              signal(SIGXFSZ, SIG_DFL);
              sigset_t xfsz;
              sigemptyset(&xfsz);
              sigaddset(&xfsz, SIGXFSZ);
              pthread_sigmask(SIG_BLOCK, &xfsz, nullptr);
              pthread_kill(pthread_self(), SIGXFSZ);
              { const SignalHold hold; }
              pthread_sigmask(SIG_UNBLOCK, &xfsz, nullptr);
              return 0;
            }));
}

// fork().

size_t open_descriptors() { return entries_of("/proc/self/fd"); }

size_t open_pipes() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone).string().starts_with("pipe:")) ++count;
  }
  return count;
}

TEST(RegionFork, Fork_WithSharedMemory_LeavesNoDescriptor) {
  auto remapper = make_remapper();
  Memory memory(20);
  memory.fill();
  ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true));
  const size_t before = open_descriptors();
  EXPECT_EQ(0, in_child([&] { return open_descriptors() <= before && memory.filled() ? 0 : 1; }));
  EXPECT_EQ(before, open_descriptors());
  remapper->unshare(memory.data(), memory.size());
}

TEST(RegionFork, Fork_WithSharedMemory_ChildHasNoPipeOfTheParent) {
  auto remapper = make_remapper();
  Memory memory(20);
  memory.fill();
  ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true));
  ASSERT_TRUE(is_shared(memory.data()));
  const size_t before = open_pipes();
  EXPECT_EQ(0, in_child([before] { return open_pipes() == before ? 0 : 1; }));
  EXPECT_EQ(before, open_pipes());
  remapper->unshare(memory.data(), memory.size());
}

TEST(RegionFork, Fork_ChildForksAgain_LeavesDescriptorsThatReuseThePipesNumbers) {
  auto remapper = make_remapper();
  Memory memory(20);
  memory.fill();
  ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true));
  ASSERT_TRUE(is_shared(memory.data()));
  EXPECT_EQ(0, in_child([] {
              // The lowest numbers that are free, among them those of the pipe.
              std::vector<base::UniqueFd> own;
              for (int i = 0; i < 16; ++i) {
                own.emplace_back(memfd_create("own", 0));
                if (ftruncate(own.back().get(), 1) != 0) return 1;
              }
              const auto untouched = [&own] {
                return std::all_of(own.begin(), own.end(),
                                   [](const auto& fd) { return lseek(fd.get(), 0, SEEK_CUR) == 0; });
              };
              if (in_child([&] { return untouched() ? 0 : 1; }) != 0) return 2;
              return untouched() ? 0 : 3;
            }));
  remapper->unshare(memory.data(), memory.size());
}

/// Has no pages itself. In the child it looks whether the parent goes on before the copies are complete.
class CopyWatcher final : public ForkParticipant {
 public:
  struct Seen {
    std::atomic<bool> parent_went_on{false};
    std::atomic<bool> too_early{false};
  };
  CopyWatcher()
      : seen_(static_cast<Seen*>(
            mmap(nullptr, sizeof(Seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    EXPECT_NE(MAP_FAILED, static_cast<void*>(seen_));
    EXPECT_EQ(0, join_forks(this));
  }
  ~CopyWatcher() override {
    leave_forks(this);
    munmap(seen_, sizeof(Seen));
  }
  CopyWatcher(const CopyWatcher&) = delete;
  CopyWatcher& operator=(const CopyWatcher&) = delete;
  void before_fork() override {}
  void after_fork_in_parent() override { seen_->parent_went_on = true; }
  void after_fork_in_child() override {
    constexpr int kLooks = 50;
    for (int look = 0; look < kLooks && !seen_->parent_went_on; ++look) {
      if (signals_) kill(getppid(), SIGUSR1);
      usleep(1000);  // sleep: a parent that goes on too early does so within 50 of these
    }
    seen_->too_early = seen_->parent_went_on.load();
  }
  /// Has the child send signals to its parent meanwhile.
  void send_signals() { signals_ = true; }
  bool parent_went_on() const { return seen_->parent_went_on; }
  bool too_early() const { return seen_->too_early; }

 private:
  Seen* seen_;
  bool signals_ = false;
};

TEST(RegionFork, Fork_OneOfSeveralParticipantsCopies_ParentWaitsForIt) {
  // In each order: the one that is asked last does not decide.
  auto first = std::make_unique<CopyWatcher>();
  auto remapper = make_remapper();
  CopyWatcher last;
  Memory memory(20);
  memory.fill();
  ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true));
  ASSERT_TRUE(is_shared(memory.data()));
  EXPECT_EQ(0, in_child([&] { return memory.filled() && !is_shared(memory.data()) ? 0 : 1; }));
  for (const CopyWatcher* one : {first.get(), &last}) {
    EXPECT_TRUE(one->parent_went_on());
    EXPECT_FALSE(one->too_early()) << "the child had not got its copies";
  }
  first.reset();
  remapper->unshare(memory.data(), memory.size());
}

TEST(RegionFork, Fork_SignalsArriveMeanwhile_ParentWaitsForTheCopies) {
  static std::atomic<int> handled{0};
  handled = 0;
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) { ++handled; };  // without SA_RESTART
  ASSERT_EQ(0, sigaction(SIGUSR1, &action, &before));
  auto remapper = make_remapper();
  CopyWatcher onlooker;
  onlooker.send_signals();
  Memory memory(20);
  memory.fill();
  ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true));
  ASSERT_TRUE(is_shared(memory.data()));
  const pid_t child = fork();
  if (child == 0) _exit(0);
  EXPECT_GT(handled, 0);
  int status = -1;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
  EXPECT_FALSE(onlooker.too_early()) << "the child had not got its copies";
  sigaction(SIGUSR1, &before, nullptr);
  remapper->unshare(memory.data(), memory.size());
}

TEST(RegionFork, Share_InAChild_SharesNothing) {
  auto remapper = make_remapper();
  Memory memory(4);
  EXPECT_EQ(0, in_child([&] {
              auto own = remapper->allocate(page(1));
              if (!own) return 1;
              auto pieces = remapper->share(memory.data(), memory.size(), true);
              if (!pieces || !pieces->empty()) return 2;
              if (is_shared(memory.data())) return 3;
              remapper->unshare(memory.data(), memory.size());
              remapper->release(*own);
              return 0;
            }));
}

TEST(RegionFork, Allocate_InvalidLengthInAChild_FailsWithEinval) {
  auto remapper = make_remapper();
  const auto refused = [&](size_t length) {
    const auto piece = remapper->allocate(length);
    return !piece && piece.error().code() == EINVAL;
  };
  EXPECT_TRUE(refused(0));
  EXPECT_TRUE(refused(SIZE_MAX));
  EXPECT_EQ(0, in_child([&] {
              if (!refused(0) || !refused(SIZE_MAX)) return 1;
              return remapper->fd() == -1 ? 0 : 2;  // it has no file until it needs one
            }));
}

TEST(RegionFork, Fork_TwoRemappers_ChildGetsTheCopiesOfEach) {
  auto one = make_remapper(), two = make_remapper();
  Memory first(20), second(20);
  first.fill();
  second.fill();
  ASSERT_TRUE(one->share(first.data(), first.size(), true));
  ASSERT_TRUE(two->share(second.data(), second.size(), true));
  ASSERT_TRUE(is_shared(first.data()) && is_shared(second.data()));
  EXPECT_EQ(0, in_child([&] {
              if (is_shared(first.data()) || is_shared(second.data())) return 1;
              std::memset(first.data(), 0, first.size());
              std::memset(second.data(), 0, second.size());
              return 0;
            }));
  EXPECT_TRUE(first.filled() && second.filled());
  one.reset();
  EXPECT_EQ(0, in_child([&] { return second.filled() && !is_shared(second.data()) ? 0 : 1; }))
      << "a destroyed remapper takes no part";
  two->unshare(second.data(), second.size());
}

TEST(RegionFork, Fork_ChildWrites_ParentDoesNotSeeIt) {
  auto remapper = make_remapper();
  Memory memory(600);
  memory.data()[page(17)] = 1;  // most of it was never touched
  auto pieces = remapper->share(memory.data(), memory.size(), true);
  ASSERT_TRUE(pieces && !pieces->empty());
  EXPECT_EQ(0, in_child([&] {
              if (memory.data()[page(17)] != 1 || memory.data()[page(400)] != 0) return 1;
              std::memset(memory.data(), 9, memory.size());
              return memory.data()[page(599)] == 9 ? 0 : 2;
            }));
  EXPECT_EQ(1, memory.data()[page(17)]);
  EXPECT_EQ(0, memory.data()[page(400)]);
  EXPECT_EQ(0, memory.data()[page(599)]);
  remapper->unshare(memory.data(), memory.size());
}

TEST(RegionFork, Fork_NoDescriptorIsFree_ChildGetsItsCopies) {
  auto remapper = make_remapper();
  Memory memory(20);
  memory.fill();
  ASSERT_TRUE(remapper->share(memory.data(), memory.size(), true));
  EXPECT_EQ(0, in_child([&] {
              // In a child, whose limit is its own: it shares anew, and forks without a descriptor left.
              auto own = make_remapper();
              Memory mine(20);
              mine.fill();
              if (!own->share(mine.data(), mine.size(), true)) return 1;
              rlimit limit{};
              getrlimit(RLIMIT_NOFILE, &limit);
              limit.rlim_cur = 3;
              if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
              const pid_t child = fork();
              if (child == 0) {
                if (!mine.filled()) _exit(1);
                std::memset(mine.data(), 7, mine.size());
                _exit(mine.data()[5] == 7 ? 0 : 2);
              }
              int status = -1;
              waitpid(child, &status, 0);
              return status == 0 && mine.filled() ? 0 : 3;
            }));
  remapper->unshare(memory.data(), memory.size());
}

TEST(RegionWriteGuardRules, Open_MovesNotAllowed_CannotMove) { EXPECT_FALSE(WriteGuard::open(false).can_move()); }

TEST(RegionWriteGuardRules, CloseAbsent_RangeThatCannotBeWatched_Fails) {
  const WriteGuard guard = WriteGuard::open();
  if (guard.kind() == WriteGuard::Kind::kNone) GTEST_SKIP() << "no userfaultfd";
  constexpr uint64_t kPages = 4 * kPageSize;
  void* const room = mmap(nullptr, kPages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(room, MAP_FAILED);
  const auto begin = reinterpret_cast<uintptr_t>(room);
  EXPECT_EQ(guard.handle().close_absent(begin, kPages), 0);
  guard.handle().open_range(begin, kPages);
  const WriteGuard other = WriteGuard::open();
  ASSERT_EQ(other.handle().close_absent(begin, kPageSize), 0);
  EXPECT_EQ(guard.handle().close_absent(begin, kPages), EBUSY) << "another one watches a part of it";
  other.handle().open_range(begin, kPageSize);
  munmap(room, kPages);
  EXPECT_NE(guard.handle().close_absent(begin, kPages), 0) << "nothing is there";
}

}  // namespace
}  // namespace nupa::memory::testing
