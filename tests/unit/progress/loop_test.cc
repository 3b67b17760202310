// SPDX-License-Identifier: Apache-2.0
/// An event loop: watches, timers and tasks, turn by turn.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
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

#include "../../support/loop_by_hand.h"
#include "base/unique_fd.h"
#include "loops.h"
#include "progress/descriptors.h"
#include "progress/loop.h"

namespace nupa::progress {
namespace {

constexpr Deadline kNow = Deadline::at(0);  ///< a turn that does not sleep

class SimulatedClock final : public Clock {
 public:
  int64_t now_ns() const override { return now; }
  int64_t now = 1'000;
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
  bool turn() { return LoopByHand::turn(*loop_, kNow); }

  SimulatedClock clock_;
  std::unique_ptr<Loop> loop_;
};

TEST_F(ProgressLoop, Watch_Readable_IsCalledWhileItIs) {
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
  bell.clear();
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

TEST_F(ProgressLoop, Watch_OfAReusedDescriptorNumber_IsNotCalledForTheOldDescriptor) {
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

TEST_F(ProgressLoop, Watch_WantsRoom_IsCalledForRoomUntilItDoesNot) {
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

TEST_F(ProgressLoop, Watch_Pauses_IsCalledAgainFromThatTime) {
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
  EXPECT_EQ(clock_.now, LoopByHand::next_due_ns(*loop_));
  turn();
  EXPECT_TRUE(turn());
  EXPECT_EQ(2, calls);
}

TEST_F(ProgressLoop, Watch_PausesAfterAHangUp_CostsNoTurns) {
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
  EXPECT_EQ(INT64_MAX, LoopByHand::next_due_ns(*loop_));
  clock_.now += 100;
  EXPECT_FALSE(turn());
}

TEST_F(ProgressLoop, Timer_Due_IsCalledOnceWithTheTime) {
  std::vector<int64_t> calls;
  Loop::Timer timer(*loop_, [&](int64_t now) { calls.push_back(now); });
  EXPECT_EQ(INT64_MAX, LoopByHand::next_due_ns(*loop_));
  timer.set(clock_.now + 10);
  EXPECT_EQ(clock_.now + 10, LoopByHand::next_due_ns(*loop_));
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
  EXPECT_EQ(20, LoopByHand::next_due_ns(*loop_));
  timer.set_at_latest(10);
  EXPECT_EQ(10, LoopByHand::next_due_ns(*loop_));
  timer.set(40);
  EXPECT_EQ(40, LoopByHand::next_due_ns(*loop_));
  timer.set(INT64_MAX);
  EXPECT_EQ(INT64_MAX, LoopByHand::next_due_ns(*loop_));
  timer.set(20);
  timer.clear();
  EXPECT_EQ(INT64_MAX, LoopByHand::next_due_ns(*loop_));
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
    ASSERT_EQ(next, LoopByHand::next_due_ns(*loop_));
  }
}

TEST_F(ProgressLoop, Timer_AlwaysDue_DoesNotKeepDescriptorsFromTheirTurn) {
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
  while (fired == 0) LoopByHand::turn(loop, Deadline::never());
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

TEST_F(ProgressLoop, Call_LoopDoesNotTurn_IsNotRunLater) {
  bool returned = true;
  std::thread([&] { returned = loop_->call([] { ADD_FAILURE(); }, Deadline::in_ms(1)); }).join();
  EXPECT_FALSE(returned);
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

}  // namespace
}  // namespace nupa::progress
