// SPDX-License-Identifier: Apache-2.0
/// An event loop on its thread: handlers that run during other calls, fork(), no free descriptors.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "../../support/loop_by_hand.h"
#include "../../support/sanitizers.h"
#include "base/unique_fd.h"
#include "loops.h"
#include "progress/loop.h"
#include "progress/waiter.h"

namespace nupa::progress {
namespace {

template <class Condition>
bool await(Condition condition) {
  return wait_for(condition, kPeerPolicy, Deadline::in_ms(60'000));
}

/// A loop with a thread.
class ProgressLoopThread : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = Loop::open();
    ASSERT_TRUE(opened) << opened.error().what();
    loop_ = std::move(*opened);
    ASSERT_TRUE(loop_->start("nupa-test"));
  }
  /// The thread sleeps, or is about to without a look at what comes now.
  void have_it_sleep() {
    ASSERT_TRUE(loop_->call([] {}, Deadline::in_ms(60'000)));
  }
  std::unique_ptr<Loop> loop_;
};

/// The exit status of a child that does this.
int status_of_child(const std::function<bool()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(work() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST_F(ProgressLoopThread, Handlers_RunOnItsThread) {
  Bell bell;
  std::atomic<int> seen{0};
  const auto watched = loop_->watch(bell.fd(), [&](uint32_t) {
    bell.clear();
    if (loop_->on_this_thread()) ++seen;
  });
  ASSERT_TRUE(watched);
  Loop::Timer timer(*loop_, [&](int64_t) {
    if (loop_->on_this_thread()) ++seen;
  });
  EXPECT_FALSE(loop_->on_this_thread());
  bell.ring();
  timer.run_soon();
  EXPECT_TRUE(await([&] { return seen == 2; }));
}

TEST_F(ProgressLoopThread, Timer_SetEarlierThanTheSleep_WakesIt) {
  std::atomic<int> fired{0};
  Loop::Timer later(*loop_, [&](int64_t) { ADD_FAILURE(); });
  Loop::Timer timer(*loop_, [&](int64_t) { ++fired; });
  later.set(now_ns() + 3'600 * kNsPerSecond);
  for (int i = 1; i <= 200; ++i) {
    if (i % 2 == 0) have_it_sleep();
    timer.set(i % 3 == 0 ? 0 : now_ns() + 10 * kNsPerUs);
    ASSERT_TRUE(await([&] { return fired == i; })) << i;
  }
}

TEST_F(ProgressLoopThread, Watch_AddedWhileItSleeps_IsServed) {
  have_it_sleep();
  Bell bell;
  bell.ring();
  std::atomic<bool> seen{false};
  const auto watched = loop_->watch(bell.fd(), [&](uint32_t) {
    bell.clear();
    seen = true;
  });
  EXPECT_TRUE(await([&] { return seen.load(); }));
}

TEST_F(ProgressLoopThread, Watch_PausedWhileItSleeps_IsCalledAgain) {
  Bell bell;
  std::atomic<bool> seen{false};
  const auto watched = loop_->watch(bell.fd(), [&](uint32_t) {
    bell.clear();
    seen = true;
  });
  ASSERT_TRUE(watched);
  have_it_sleep();
  (*watched)->pause_until(now_ns() + kNsPerMs);
  bell.ring();
  EXPECT_TRUE(await([&] { return seen.load(); }));
}

/// A handler that another thread holds.
struct Held {
  void run() {
    is_inside = true;
    wait_for([this] { return let_go.load(); }, kPeerPolicy, Deadline::never());
    is_inside = false;
  }
  std::atomic<bool> is_inside{false}, let_go{false};
};

/// Whether `removal`, on another thread, waits for the handler and no longer.
void expect_waits_for(Held& held, const std::function<void()>& removal) {
  ASSERT_TRUE(await([&] { return held.is_inside.load(); }));
  std::atomic<bool> is_inside_after{true}, begins{false};
  std::thread remover([&] {
    begins = true;
    removal();
    is_inside_after = held.is_inside.load();
  });
  ASSERT_TRUE(await([&] { return begins.load(); }));
  sleep_for(2 * kNsPerMs);  // sleep: a remover that does not wait has gone on by then, most times
  held.let_go = true;
  remover.join();
  EXPECT_FALSE(is_inside_after) << "the handler was running after it was removed";
}

TEST_F(ProgressLoopThread, Watch_DestroyedWhileItsHandlerRuns_WaitsForIt) {
  Bell bell;
  Held held;
  auto watched = loop_->watch(bell.fd(), [&](uint32_t) {
    bell.clear();
    held.run();
  });
  ASSERT_TRUE(watched);
  bell.ring();
  expect_waits_for(held, [&] { watched->reset(); });
}

TEST_F(ProgressLoopThread, Timer_DestroyedWhileItsHandlerRuns_WaitsForIt) {
  Held held;
  auto timer = std::make_unique<Loop::Timer>(*loop_, [&](int64_t) { held.run(); });
  timer->set(0);
  expect_waits_for(held, [&] { timer.reset(); });
}

TEST_F(ProgressLoopThread, Timer_HandlerSetsItWhileItIsDestroyed_IsNotCalledAgain) {
  std::atomic<bool> is_inside{false};
  std::atomic<int> calls{0};
  std::optional<Loop::Timer> timer;
  Loop::Timer* itself = nullptr;
  timer.emplace(*loop_, [&](int64_t) {
    ++calls;
    itself->set(INT64_MAX - 1);
    is_inside = true;
    // The destructor takes it out of the heap, and waits for this handler.
    EXPECT_TRUE(await([&] { return LoopByHand::next_due_ns(*loop_) == INT64_MAX; }));
    itself->set(INT64_MAX - 1);
  });
  itself = &*timer;
  timer->set(0);
  ASSERT_TRUE(await([&] { return is_inside.load(); }));
  timer.reset();
  EXPECT_EQ(LoopByHand::next_due_ns(*loop_), INT64_MAX) << "the destroyed timer is still set";
  EXPECT_EQ(calls, 1);
}

TEST_F(ProgressLoopThread, Watch_HandlerPausesItWhileItIsDestroyed_IsNotCalledAgain) {
  Bell bell;
  std::atomic<bool> is_inside{false};
  std::unique_ptr<Loop::Watch> watch;
  std::atomic<Loop::Watch*> itself{nullptr};
  auto watched = loop_->watch(bell.fd(), [&](uint32_t) {
    bell.clear();
    if (!await([&] { return itself.load() != nullptr; })) return;
    itself.load()->pause_until(INT64_MAX - 1);
    is_inside = true;
    EXPECT_TRUE(await([&] { return LoopByHand::next_due_ns(*loop_) == INT64_MAX; }));
    itself.load()->pause_until(INT64_MAX - 1);
  });
  ASSERT_TRUE(watched);
  watch = std::move(*watched);
  itself = watch.get();
  bell.ring();
  ASSERT_TRUE(await([&] { return is_inside.load(); }));
  watch.reset();
  EXPECT_EQ(LoopByHand::next_due_ns(*loop_), INT64_MAX) << "the destroyed watch still pauses";
}

TEST_F(ProgressLoopThread, Watch_DestroyedWhileAnothersHandlerRuns_DoesNotWait) {
  Bell bell;
  Held held;
  Loop::Timer timer(*loop_, [&](int64_t) { held.run(); });
  auto watched = loop_->watch(bell.fd(), [](uint32_t) {});
  ASSERT_TRUE(watched);
  timer.set(0);
  ASSERT_TRUE(await([&] { return held.is_inside.load(); }));
  watched->reset();
  EXPECT_TRUE(held.is_inside);
  held.let_go = true;
}

TEST_F(ProgressLoopThread, Call_Returns_AfterTheTask) {
  for (int i = 0; i < 100; ++i) {
    int done = 0;
    ASSERT_TRUE(loop_->call([&] { ++done; }, Deadline::never()));
    ASSERT_EQ(1, done);
  }
}

TEST_F(ProgressLoopThread, Call_TaskBegunByTheDeadline_IsWaitedFor) {
  Held held;
  std::atomic<bool> has_begun{false}, is_over{false};
  std::thread helper([&] {
    await([&] { return held.is_inside.load() || is_over.load(); });
    sleep_for(20 * kNsPerMs);  // sleep: the handler is held beyond the deadline
    held.let_go = true;
  });
  const bool ran = loop_->call(
      [&] {
        has_begun = true;
        held.run();
      },
      Deadline::in_ms(10));
  EXPECT_EQ(has_begun, ran) << "a busy machine may not begin it in time";
  EXPECT_FALSE(held.is_inside);
  is_over = true;
  helper.join();
}

TEST_F(ProgressLoopThread, Call_LoopEnds_IsRefused) {
  Held held;
  Loop::Timer timer(*loop_, [&](int64_t) {
    loop_->stop();
    held.run();
  });
  timer.set(0);
  ASSERT_TRUE(await([&] { return held.is_inside.load(); }));
  std::thread caller([&] { EXPECT_FALSE(loop_->call([] { ADD_FAILURE(); }, Deadline::never())); });
  sleep_for(2 * kNsPerMs);  // sleep: the caller waits by then; if it does not, the loop refuses its call at once
  held.let_go = true;
  caller.join();
}

TEST_F(ProgressLoopThread, WatchesTimersAndCalls_FromManyThreads_AreServed) {
  constexpr int kThreads = 4;
  constexpr int kTurns = 300;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTurns; ++i) {
        Bell bell;
        std::atomic<int> rung{0}, fired{0};
        auto watched = loop_->watch(bell.fd(), [&](uint32_t) {
          bell.clear();
          ++rung;
        });
        ASSERT_TRUE(watched);
        auto timer = std::make_unique<Loop::Timer>(*loop_, [&](int64_t) { ++fired; });
        timer->set(now_ns() + (i * 7 + t) % 50 * kNsPerUs);
        bell.ring();
        if (i % 4 != 0) {
          ASSERT_TRUE(await([&] { return rung == 1; }));
          ASSERT_TRUE(await([&] { return fired == 1; }));
        }
        if (i % 5 == 0) {
          ASSERT_TRUE(loop_->call([&] { timer.reset(); }, Deadline::never()));
        }
        watched->reset();
        timer.reset();
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST_F(ProgressLoopThread, Fork_Child_LeavesWatchesAndTimersToTheParent) {
  if (nupa::test::kThreadSanitizer) GTEST_SKIP() << nupa::test::kNoThreadInChild;
  Bell bell;
  std::atomic<int> rung{0}, fired{0};
  auto watched = loop_->watch(bell.fd(), [&](uint32_t) {
    bell.clear();
    ++rung;
  });
  ASSERT_TRUE(watched);
  auto timer = std::make_unique<Loop::Timer>(*loop_, [&](int64_t) { ++fired; });
  Held held;
  Loop::Timer holder(*loop_, [&](int64_t) { held.run(); });
  holder.set(0);
  ASSERT_TRUE(await([&] { return held.is_inside.load(); }));
  // Numbers that the loop's descriptors had are the child's to use.
  EXPECT_EQ(0, status_of_child([&] {
              (*watched)->want_room(true);
              (*watched)->pause_until(0);
              timer->set(0);
              timer->run_soon();
              if (loop_->post([] {}) || loop_->call([] {}, Deadline::never()) || loop_->on_this_thread()) return false;
              const auto more = loop_->watch(bell.fd(), [](uint32_t) {});
              if (more || more.error().code() != ENODEV) return false;
              Loop::Timer another(*loop_, [](int64_t) {});
              another.set(0);
              watched->reset();
              timer.reset();
              std::vector<int> open;
              for (int fd = 3; fd < 100; ++fd) open.push_back(dup2(bell.fd(), fd));
              loop_.reset();
              for (const int fd : open)
                if (fcntl(fd, F_GETFD) < 0) return false;
              auto own = Loop::open();
              if (!own || !(*own)->start("nupa-test")) return false;
              return (*own)->call([] {}, Deadline::in_ms(60'000));
            }));
  held.let_go = true;
  bell.ring();
  EXPECT_TRUE(await([&] { return rung == 1; }));
  have_it_sleep();
  EXPECT_EQ(0, fired);
  timer->set(0);
  EXPECT_TRUE(await([&] { return fired == 1; }));
}

TEST_F(ProgressLoopThread, Fork_Child_ClosesTheLoopsDescriptors) {
  const auto count = [] {
    int open = 0;
    for (int fd = 0; fd < 1'000; ++fd) open += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return open;
  };
  const int before = count();
  auto another = Loop::open();
  ASSERT_TRUE(another);
  EXPECT_EQ(before + 2, count());
  // This one's and that of the fixture.
  EXPECT_EQ(0, status_of_child([&] { return count() == before - 2; }));
}

TEST(ProgressLoopDescriptors, Open_NoDescriptorLeft_Fails) {
  rlimit before{};
  ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &before));
  for (const int free : {0, 1}) {
    const base::UniqueFd next(dup(0));
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(next.get()) + static_cast<rlim_t>(free) + 1;
    ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &few));
    const auto opened = Loop::open();
    ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &before));
    ASSERT_FALSE(opened) << free;
    EXPECT_EQ(EMFILE, opened.error().code());
  }
}

/// The kernel answers EPERM to epoll_pwait2() of this thread from now on, as in a sandbox. False: not possible here.
bool forbid_epoll_pwait2() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog all{static_cast<unsigned short>(std::size(program)), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0;
}

TEST(ProgressLoopSandbox, WithoutEpollPwait2_SleepsUntilTheTimeOrTheDescriptor) {
  if (geteuid() != 0 && prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0) GTEST_SKIP() << "system calls cannot be forbidden";
  EXPECT_EQ(0, status_of_child([] {
              if (!forbid_epoll_pwait2()) return true;
              auto loop = Loop::open();
              if (!loop) return false;
              const int64_t until = now_ns() + 1'000'000;
              int64_t due = 0;
              Loop::Timer timer(**loop, [&](int64_t now) { due = now; });
              timer.set(until);
              while (LoopByHand::next_due_ns(**loop) != INT64_MAX)
                if (!LoopByHand::turn(**loop, Deadline::never()) && now_ns() > until + kNsPerMs * 60'000) return false;
              Bell bell;
              int calls = 0;
              const auto watched = (*loop)->watch(bell.fd(), [&](uint32_t) {
                ++calls;
                bell.clear();
              });
              bell.ring();
              return watched && LoopByHand::turn(**loop, Deadline::never()) && calls == 1 && due >= until;
            }));
}

}  // namespace
}  // namespace nupa::progress
