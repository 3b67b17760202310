// SPDX-License-Identifier: Apache-2.0
#include "progress/loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "progress/descriptors.h"
#include "progress/waiter.h"
#include "../../support/sanitizers.h"

namespace nupa::progress {
namespace {

constexpr Deadline kNow = Deadline::at(0);  ///< a turn that does not sleep

template <class Condition>
bool await(Condition condition) {
  return wait_for(condition, kPeerPolicy, Deadline::in_ms(60'000));
}

class SimulatedClock final : public Clock {
 public:
  int64_t now_ns() const override { return now; }
  int64_t now = 1'000;
};

/// A descriptor that is readable from write() to read().
class Bell {
 public:
  Bell() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  int fd() const { return fd_.get(); }
  void ring() const { EXPECT_EQ(0, eventfd_write(fd(), 1)); }
  void hush() const {
    eventfd_t value;
    EXPECT_EQ(0, eventfd_read(fd(), &value));
  }
  int release() { return fd_.release(); }

 private:
  base::UniqueFd fd_;
};

/// A loop that the test turns, in a time that the test sets.
class ProgressLoop : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = Loop::open(clock_);
    ASSERT_TRUE(opened) << opened.error().what();
    loop_ = std::move(*opened);
  }
  std::unique_ptr<Loop::Watch> watch(int fd, std::function<void(uint32_t)> ready) {
    auto watch = loop_->watch(fd, std::move(ready));
    EXPECT_TRUE(watch);
    return watch ? std::move(*watch) : nullptr;
  }
  bool turn() { return loop_->run_once(kNow); }

  SimulatedClock clock_;
  std::unique_ptr<Loop> loop_;
};

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

TEST_F(ProgressLoop, Watch_Readable_IsCalledAsLongAsItIs) {
  Bell bell;
  int calls = 0;
  const auto watched = watch(bell.fd(), [&](uint32_t events) {
    EXPECT_EQ(static_cast<uint32_t>(EPOLLIN), events);
    ++calls;
  });
  EXPECT_FALSE(turn());
  bell.ring();
  EXPECT_TRUE(turn());
  EXPECT_TRUE(turn());
  EXPECT_EQ(2, calls);
  bell.hush();
  EXPECT_FALSE(turn());
}

TEST_F(ProgressLoop, Watch_Destroyed_IsNotCalledAndItsDescriptorStaysOpen) {
  Bell bell;
  auto watched = watch(bell.fd(), [](uint32_t) { ADD_FAILURE(); });
  bell.ring();
  watched.reset();
  EXPECT_FALSE(turn());
  EXPECT_TRUE(is_readable(bell.fd()));
  int calls = 0;
  watched = watch(bell.fd(), [&](uint32_t) { ++calls; });
  EXPECT_TRUE(turn());
  EXPECT_EQ(1, calls);
}

TEST_F(ProgressLoop, Watch_OfTheSameDescriptor_IsRefused) {
  Bell bell;
  const auto watched = watch(bell.fd(), [](uint32_t) {});
  const auto again = loop_->watch(bell.fd(), [](uint32_t) {});
  ASSERT_FALSE(again);
  EXPECT_EQ(EEXIST, again.error().code());
}

TEST_F(ProgressLoop, Watch_DestroyedInAnothersHandlerOfTheSameTurn_IsNotCalled) {
  Bell bells[2];
  std::unique_ptr<Loop::Watch> watched[2];
  int calls = 0;
  for (int i = 0; i < 2; ++i) {
    watched[i] = watch(bells[i].fd(), [&, i](uint32_t) {
      ++calls;
      watched[1 - i].reset();
    });
    bells[i].ring();
  }
  EXPECT_TRUE(turn());
  EXPECT_EQ(1, calls);
}

TEST_F(ProgressLoop, Watch_OfADescriptorWhoseNumberWasAnothers_IsNotCalledForThat) {
  // Both are readable in one turn; whichever comes first closes the other, whose number a silent one gets.
  Bell bells[2];
  std::unique_ptr<Loop::Watch> watched[2], fresh;
  Bell silent;
  for (int i = 0; i < 2; ++i) {
    watched[i] = watch(bells[i].fd(), [&, i](uint32_t) {
      watched[1 - i].reset();
      const int number = bells[1 - i].fd();
      ASSERT_EQ(number, dup2(silent.fd(), number));
      fresh = watch(number, [](uint32_t) { ADD_FAILURE(); });
    });
    bells[i].ring();
  }
  EXPECT_TRUE(turn());
  ASSERT_NE(nullptr, fresh);
}

TEST_F(ProgressLoop, Handler_ThatDestroysItsWatch_KeepsWhatItRefersTo) {
  Bell bell;
  auto held = std::make_shared<int>(7);
  const std::weak_ptr<int> seen = held;
  std::unique_ptr<Loop::Watch> watched;
  watched = watch(bell.fd(), [&, held = std::move(held)](uint32_t) {
    watched.reset();
    EXPECT_FALSE(seen.expired());
  });
  bell.ring();
  EXPECT_TRUE(turn());
  EXPECT_TRUE(seen.expired());
  EXPECT_FALSE(turn());
}

TEST_F(ProgressLoop, Watch_ThatWantsRoom_IsCalledForRoomUntilItDoesNot) {
  int ends[2];
  ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
  const base::UniqueFd one(ends[0]);
  const base::UniqueFd other(ends[1]);
  uint32_t seen = 0;
  const auto watched = watch(one.get(), [&](uint32_t events) { seen |= events; });
  EXPECT_FALSE(turn());
  watched->want_room(true);
  EXPECT_TRUE(turn());
  EXPECT_EQ(static_cast<uint32_t>(EPOLLOUT), seen);
  watched->want_room(false);
  EXPECT_FALSE(turn());
}

TEST_F(ProgressLoop, Watch_ThatPauses_IsCalledFromThenOn) {
  Bell bell;
  int calls = 0;
  std::unique_ptr<Loop::Watch> watched;
  watched = watch(bell.fd(), [&](uint32_t) {
    if (++calls == 1) watched->pause_until(clock_.now + 100);
  });
  bell.ring();
  EXPECT_TRUE(turn());
  EXPECT_FALSE(turn());
  watched->want_room(true);  // wakes nobody
  watched->want_room(false);
  clock_.now += 99;
  EXPECT_FALSE(turn());
  EXPECT_EQ(1, calls);
  ++clock_.now;
  EXPECT_EQ(clock_.now, loop_->next_due_ns());
  turn();
  EXPECT_TRUE(turn());
  EXPECT_EQ(2, calls);
}

TEST_F(ProgressLoop, Watch_ThatPausesAtItsEnd_CostsNoTurns) {
  int ends[2];
  ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
  const base::UniqueFd one(ends[0]);
  const auto watched = watch(one.get(), [](uint32_t) { ADD_FAILURE(); });
  watched->pause_until(clock_.now + 100);
  close(ends[1]);
  EXPECT_FALSE(turn());
}

TEST_F(ProgressLoop, Watch_DestroyedWhileItPauses_LeavesNothing) {
  Bell bell;
  auto watched = watch(bell.fd(), [](uint32_t) { ADD_FAILURE(); });
  bell.ring();
  watched->pause_until(clock_.now + 100);
  watched.reset();
  EXPECT_EQ(INT64_MAX, loop_->next_due_ns());
  clock_.now += 100;
  EXPECT_FALSE(turn());
}

TEST_F(ProgressLoop, Timer_Due_IsCalledOnceWithTheTime) {
  std::vector<int64_t> calls;
  Loop::Timer timer(*loop_, [&](int64_t now) { calls.push_back(now); });
  EXPECT_EQ(INT64_MAX, loop_->next_due_ns());
  timer.set(clock_.now + 10);
  EXPECT_EQ(clock_.now + 10, loop_->next_due_ns());
  clock_.now += 9;
  EXPECT_FALSE(turn());
  clock_.now += 4;
  EXPECT_TRUE(turn());
  EXPECT_FALSE(turn());
  EXPECT_EQ(std::vector<int64_t>{clock_.now}, calls);
}

TEST_F(ProgressLoop, Timer_SetAtLatest_KeepsWhatIsEarlier) {
  Loop::Timer timer(*loop_, [](int64_t) {});
  timer.set(20);
  timer.set_at_latest(30);
  EXPECT_EQ(20, loop_->next_due_ns());
  timer.set_at_latest(10);
  EXPECT_EQ(10, loop_->next_due_ns());
  timer.set(40);
  EXPECT_EQ(40, loop_->next_due_ns());
  timer.set(INT64_MAX);
  EXPECT_EQ(INT64_MAX, loop_->next_due_ns());
  timer.set(20);
  timer.clear();
  EXPECT_EQ(INT64_MAX, loop_->next_due_ns());
}

TEST_F(ProgressLoop, RunSoon_WhileTheHandlerLooksForItsNextDeadline_RunsItAgain) {
  int calls = 0;
  Loop::Timer* own = nullptr;
  Loop::Timer timer(*loop_, [&](int64_t now) {
    if (++calls == 1) own->run_soon();  // as another thread would
    own->set_at_latest(now + 1'000);
  });
  own = &timer;
  timer.run_soon();
  EXPECT_TRUE(turn());
  EXPECT_TRUE(turn());
  EXPECT_EQ(2, calls);
  EXPECT_FALSE(turn());
}

TEST_F(ProgressLoop, Timers_OfManySettings_FireInTheOrderOfTime) {
  constexpr size_t kTimers = 300;
  std::mt19937 random(7);
  std::vector<std::unique_ptr<Loop::Timer>> timers(kTimers);
  std::map<size_t, int64_t> wanted;
  std::vector<size_t> fired;
  const auto make = [&](size_t i) {
    timers[i] = std::make_unique<Loop::Timer>(*loop_, [&, i](int64_t) { fired.push_back(i); });
  };
  for (size_t i = 0; i < kTimers; ++i) make(i);
  for (int step = 0; step < 20'000; ++step) {
    const size_t i = random() % kTimers;
    const int64_t at = clock_.now + static_cast<int64_t>(random() % 500);
    switch (random() % 8) {
      case 0:
        timers[i]->clear();
        wanted.erase(i);
        break;
      case 1:
        timers[i].reset();
        make(i);
        wanted.erase(i);
        break;
      case 2:
        timers[i]->set_at_latest(at);
        wanted[i] = wanted.contains(i) ? std::min(wanted[i], at) : at;
        break;
      default:
        timers[i]->set(at);
        wanted[i] = at;
    }
    if (step % 16 != 0) continue;
    ++clock_.now;
    fired.clear();
    turn();
    int64_t last = 0;
    for (const size_t each : fired) {
      ASSERT_TRUE(wanted.contains(each)) << each;
      ASSERT_LE(last, wanted[each]);
      ASSERT_LE(wanted[each], clock_.now);
      last = wanted[each];
      wanted.erase(each);
    }
    int64_t next = INT64_MAX;
    for (const auto& [timer, due] : wanted) next = std::min(next, due);
    ASSERT_EQ(next, loop_->next_due_ns());
  }
}

TEST_F(ProgressLoop, Timer_ThatIsAlwaysDue_LeavesDescriptorsTheirTurn) {
  Bell bell;
  int calls = 0;
  Loop::Timer* own = nullptr;
  Loop::Timer timer(*loop_, [&](int64_t) { own->set(0); });
  own = &timer;
  timer.set(0);
  const auto watched = watch(bell.fd(), [&](uint32_t) { ++calls; });
  bell.ring();
  EXPECT_TRUE(turn());
  EXPECT_TRUE(turn());
  EXPECT_EQ(2, calls);
}

TEST_F(ProgressLoop, Handler_ThatDestroysItsTimer_KeepsWhatItRefersTo) {
  auto held = std::make_shared<int>(7);
  const std::weak_ptr<int> seen = held;
  std::unique_ptr<Loop::Timer> timer;
  timer = std::make_unique<Loop::Timer>(*loop_, [&, held = std::move(held)](int64_t) {
    timer.reset();
    EXPECT_FALSE(seen.expired());
  });
  timer->set(0);
  EXPECT_TRUE(turn());
  EXPECT_TRUE(seen.expired());
}

TEST_F(ProgressLoop, RunOnce_UntilATimer_SleepsAndRunsIt) {
  auto opened = Loop::open();
  ASSERT_TRUE(opened);
  Loop& loop = **opened;
  constexpr int64_t kAfterNs = 3'141'592;
  const int64_t at = now_ns() + kAfterNs;
  int64_t fired = 0;
  Loop::Timer timer(loop, [&](int64_t now) { fired = now; });
  timer.set(at);
  while (fired == 0) loop.run_once(Deadline::never());
  EXPECT_GE(fired, at);
}

TEST_F(ProgressLoop, Post_Tasks_RunInTheirOrderAndNewOnesInTheNextTurn) {
  std::vector<int> seen;
  ASSERT_TRUE(loop_->post([&] {
    seen.push_back(1);
    ASSERT_TRUE(loop_->post([&] { seen.push_back(3); }));
  }));
  ASSERT_TRUE(loop_->post([&] { seen.push_back(2); }));
  EXPECT_TRUE(turn());
  EXPECT_EQ((std::vector<int>{1, 2}), seen);
  EXPECT_TRUE(turn());
  EXPECT_EQ((std::vector<int>{1, 2, 3}), seen);
  EXPECT_FALSE(turn());
}

TEST_F(ProgressLoop, Call_ToALoopThatDoesNotTurn_IsNotRunLater) {
  bool came_back = true;
  std::thread([&] { came_back = loop_->call([] { ADD_FAILURE(); }, Deadline::in_ms(1)); }).join();
  EXPECT_FALSE(came_back);
  EXPECT_FALSE(turn());
}

TEST_F(ProgressLoop, Call_OnItsOwnThread_RunsAtOnce) {
  EXPECT_FALSE(loop_->on_this_thread());
  turn();
  EXPECT_TRUE(loop_->on_this_thread());
  bool ran = false;
  EXPECT_TRUE(loop_->call([&] { ran = true; }, Deadline::never()));
  EXPECT_TRUE(ran);
}

std::atomic<Loop*> g_stopped{nullptr};

TEST_F(ProgressLoop, Stop_InASignalHandler_EndsRunAndCallsAreRefused) {
  g_stopped = loop_.get();
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) { g_stopped.load()->stop(); };
  ASSERT_EQ(0, sigaction(SIGUSR2, &action, &before));
  Loop::Timer timer(*loop_, [](int64_t) { raise(SIGUSR2); });
  timer.set(0);
  loop_->run();
  ASSERT_EQ(0, sigaction(SIGUSR2, &before, nullptr));
  EXPECT_FALSE(loop_->on_this_thread());
  EXPECT_FALSE(loop_->call([] { ADD_FAILURE(); }, Deadline::never()));
}

TEST_F(ProgressLoopThread, Handlers_RunOnItsThread) {
  Bell bell;
  std::atomic<int> seen{0};
  const auto watched = loop_->watch(bell.fd(), [&](uint32_t) {
    bell.hush();
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
    bell.hush();
    seen = true;
  });
  EXPECT_TRUE(await([&] { return seen.load(); }));
}

TEST_F(ProgressLoopThread, Watch_PausedWhileItSleeps_ComesBack) {
  Bell bell;
  std::atomic<bool> seen{false};
  const auto watched = loop_->watch(bell.fd(), [&](uint32_t) {
    bell.hush();
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
  sleep_for(2 * kNsPerMs);  // a remover that does not wait has gone past by then, most times
  held.let_go = true;
  remover.join();
  EXPECT_FALSE(is_inside_after) << "the handler was running after it was removed";
}

TEST_F(ProgressLoopThread, Watch_DestroyedWhileItsHandlerRuns_WaitsForIt) {
  Bell bell;
  Held held;
  auto watched = loop_->watch(bell.fd(), [&](uint32_t) {
    bell.hush();
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

TEST_F(ProgressLoopThread, Call_ReturnsAfterTheTask) {
  for (int i = 0; i < 100; ++i) {
    int done = 0;
    ASSERT_TRUE(loop_->call([&] { ++done; }, Deadline::never()));
    ASSERT_EQ(1, done);
  }
}

TEST_F(ProgressLoopThread, Call_BegunByTheDeadline_IsWaitedFor) {
  Held held;
  std::atomic<bool> has_begun{false}, is_over{false};
  std::thread helper([&] {
    await([&] { return held.is_inside.load() || is_over.load(); });
    sleep_for(20 * kNsPerMs);
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

TEST_F(ProgressLoopThread, Call_WhenTheLoopEnds_IsRefused) {
  Held held;
  Loop::Timer timer(*loop_, [&](int64_t) {
    loop_->stop();
    held.run();
  });
  timer.set(0);
  ASSERT_TRUE(await([&] { return held.is_inside.load(); }));
  std::thread caller([&] { EXPECT_FALSE(loop_->call([] { ADD_FAILURE(); }, Deadline::never())); });
  sleep_for(2 * kNsPerMs);
  held.let_go = true;
  caller.join();
}

TEST_F(ProgressLoopThread, Everything_FromManyThreadsAtOnce_IsServed) {
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
          bell.hush();
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

TEST_F(ProgressLoopThread, InAForksChild_IsTheParents) {
  if (nupa::test::kThreadSanitizer) GTEST_SKIP() << nupa::test::kNoThreadInChild;
  Bell bell;
  std::atomic<int> rung{0}, fired{0};
  auto watched = loop_->watch(bell.fd(), [&](uint32_t) {
    bell.hush();
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

TEST_F(ProgressLoopThread, InAForksChild_ItsDescriptorsAreClosed) {
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

TEST(ProgressLoopDescriptors, NoneLeft_IsTheErrorOfOpen) {
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
              while ((*loop)->next_due_ns() != INT64_MAX)
                if (!(*loop)->run_once(Deadline::never()) && now_ns() > until + kNsPerMs * 60'000) return false;
              Bell bell;
              int calls = 0;
              const auto watched = (*loop)->watch(bell.fd(), [&](uint32_t) {
                ++calls;
                bell.hush();
              });
              bell.ring();
              return watched && (*loop)->run_once(Deadline::never()) && calls == 1 && due >= until;
            }));
}

}  // namespace
}  // namespace nupa::progress
