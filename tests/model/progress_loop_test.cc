// SPDX-License-Identifier: Apache-2.0
/// An event loop that goes to sleep while other threads post tasks to it.
#include <sys/epoll.h>

#include "shadow.h"
#include "eventfd.h"
#include "expect.h"

namespace nupa::std {

/// The loop's own objects lie on the heap.
inline ::model::Case* in_making = nullptr;
template <class T, class... Arguments>
unique_ptr<T> make_unique(Arguments&&... arguments) {
  unique_ptr<T> made(new T(forward<Arguments>(arguments)...));
  if (in_making != nullptr) in_making->adopt(made.get(), sizeof(T));
  return made;
}

}  // namespace nupa::std

namespace nupa::progress {

/// epoll(7) of the only descriptor that these loops have, which is their own wake-up. While a loop sleeps no time goes
/// by.
inline int open_epoll(int) { return kFd + 1; }
inline int change_epoll(int, int, int, epoll_event*) { return 0; }
inline int sleep_on_the_counter(int, epoll_event* ready, int, const timespec* limit, const sigset_t*) {
  const bool looks_only = limit != nullptr && limit->tv_sec == 0 && limit->tv_nsec == 0;
  const auto is_readable = [looks_only](uint64_t count) { return looks_only || count != 0; };
  if (model::operations::await(&counter, 0, std::memory_order_acquire, is_readable) == 0) return 0;
  ready->events = EPOLLIN;
  ready->data.u64 = 0;
  return 1;
}
}  // namespace nupa::progress

// The lines that are checked.
#define epoll_create1 open_epoll
#define epoll_ctl change_epoll
#define epoll_pwait2 sleep_on_the_counter
#include "progress/loop.cc"

#include "../support/loop_by_hand.h"

namespace nupa::progress {

namespace {

using model::Build;
using model::Case;

constexpr int64_t kNow = 1'000, kLater = 2'000, kMuchLater = 3'000;

class StoppedClock final : public Clock {
 public:
  int64_t now_ns() const override { return kNow; }
};

/// A loop with one timer, whose thread turns it until as much was done as is to do.
struct Turned {
  explicit Turned(Case& made) {
    std::in_making = &made;
    loop = std::move(*Loop::open(clock));
    timer.emplace(*loop, [this](int64_t) { ++done; });
    std::in_making = nullptr;
  }
  void turn_until(int wanted) {
    while (done < wanted) LoopByHand::turn(*loop, Deadline::never());
  }
  void post() {
    model::require(loop->post([this] { ++done; }).has_value(), "a task is taken");
  }

  StoppedClock clock;
  std::unique_ptr<Loop> loop;
  std::optional<Loop::Timer> timer;
  int done = 0;  ///< the loop's thread
};

void one_posts_while_the_loop_falls_asleep(Case& made) {
  auto& turned = made.make<Turned>(made);
  made.thread("loop", [&turned] { turned.turn_until(1); });
  made.thread("posts", [&turned] { turned.post(); });
}

/// The second one may come while the loop takes the signal of the first.
void one_posts_twice_while_the_loop_falls_asleep(Case& made) {
  auto& turned = made.make<Turned>(made);
  made.thread("loop", [&turned] { turned.turn_until(2); });
  made.thread("posts", [&turned] {
    turned.post();
    turned.post();
  });
}

void two_post_while_the_loop_falls_asleep(Case& made) {
  auto& turned = made.make<Turned>(made);
  made.thread("loop", [&turned] { turned.turn_until(2); });
  made.thread("posts", [&turned] { turned.post(); });
  made.thread("posts too", [&turned] { turned.post(); });
}

void one_sets_a_timer_while_the_loop_falls_asleep(Case& made) {
  auto& turned = made.make<Turned>(made);
  made.thread("loop", [&turned] { turned.turn_until(1); });
  made.thread("sets", [&turned] { turned.timer->set(kNow); });
}

/// The loop sleeps for the later time, which does not come.
void one_sets_a_timer_earlier_while_the_loop_falls_asleep(Case& made) {
  auto& turned = made.make<Turned>(made);
  turned.timer->set(kMuchLater);
  made.thread("loop", [&turned] { turned.turn_until(1); });
  made.thread("sets", [&turned] {
    turned.timer->set_at_latest(kLater);
    turned.timer->run_soon();
  });
}

void one_stops_the_loop_while_it_falls_asleep(Case& made) {
  auto& turned = made.make<Turned>(made);
  made.thread("loop", [&turned] { turned.loop->run(); });
  made.thread("stops", [&turned] { turned.loop->stop(); });
}

TEST(ModelProgressLoop, Task_PostedWhileItFallsAsleep_IsRun) {
  model::expect_holds(one_posts_while_the_loop_falls_asleep);
}
TEST(ModelProgressLoop, Tasks_PostedOneAfterTheOther_AreRun) {
  model::expect_holds(one_posts_twice_while_the_loop_falls_asleep);
}
TEST(ModelProgressLoop, Tasks_PostedByTwo_AreRun) { model::expect_holds(two_post_while_the_loop_falls_asleep); }
TEST(ModelProgressLoop, Timer_SetWhileItFallsAsleep_IsRun) {
  model::expect_holds(one_sets_a_timer_while_the_loop_falls_asleep);
}
TEST(ModelProgressLoop, Timer_SetEarlierWhileItFallsAsleep_IsRun) {
  model::expect_holds(one_sets_a_timer_earlier_while_the_loop_falls_asleep);
}
TEST(ModelProgressLoop, Stop_WhileItFallsAsleep_EndsIt) {
  model::expect_holds(one_stops_the_loop_while_it_falls_asleep);
}

}  // namespace
}  // namespace nupa::progress
