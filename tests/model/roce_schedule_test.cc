// SPDX-License-Identifier: Apache-2.0
#include "shadow.h"
#include "expect.h"
#include "progress/schedule.h"
#include "transport/roce/port/deadlines.h"

namespace nupa::roce {
namespace {

using model::Build;
using model::Case;
using progress::Schedule;

constexpr int64_t kSoon = 3, kLater = 7;

struct Timers {
  Deadline deadline;
  Schedule schedule;
  std::atomic<uint32_t> kicks{};

  /// As EndpointReceiver::set_deadline().
  void set_deadline(int64_t deadline_ns) {
    deadline.set(deadline_ns);
    expect(deadline_ns);
  }
  void expect(int64_t deadline_ns) {
    if (schedule.expect(deadline_ns)) kicks.fetch_add(1, std::memory_order_acq_rel);
  }
  /// As Port::run_timers().
  void run() {
    schedule.forget();
    expect(deadline.at());
  }
  /// As AdaptivePoller::serve(), until it may sleep no longer than the deadline.
  void sleep() {
    uint32_t kicks_seen = 0;
    while (schedule.fall_asleep() > kLater) {
      while (kicks.load(std::memory_order_acquire) == kicks_seen) _mm_pause();
      kicks_seen = kicks.load(std::memory_order_acquire);
      schedule.wake_up();
    }
  }
};

/// The deadline is behind another one that is over.
void one_sets_a_deadline_while_another_looks_at_all(Case& made) {
  auto& timers = made.make<Timers>();
  timers.schedule.expect(kSoon);
  made.thread("channel", [&timers] { timers.set_deadline(kLater); });
  made.thread("port", [&timers] { timers.run(); });
  made.finally([&timers] { model::require(timers.schedule.earliest() <= kLater, "the deadline is expected"); });
}

void the_port_sleeps_while_one_sets_a_deadline(Case& made) {
  auto& timers = made.make<Timers>();
  made.thread("port", [&timers] { timers.sleep(); });
  made.thread("channel", [&timers] { timers.set_deadline(kLater); });
}

/// A thread of the program looks at all deadlines.
void the_port_sleeps_while_another_looks_at_all(Case& made) {
  auto& timers = made.make<Timers>();
  timers.set_deadline(kLater);
  made.thread("port", [&timers] { timers.sleep(); });
  made.thread("program", [&timers] { timers.run(); });
}

/// The deadline is one of a group's, whose earliest one is over.
struct GroupOfTimers : Timers {
  Earliest group;

  /// As EndpointReceiver::set_deadline().
  void set_deadline_of_one(int64_t deadline_ns) {
    deadline.set(deadline_ns);
    group.expect(deadline_ns);
    expect(deadline_ns);
  }
  /// As Port::run_timers().
  void run_groups(int64_t now) {
    schedule.forget();
    int64_t earliest = group.at();
    if (earliest <= now) {
      group.forget();
      earliest = deadline.at();
      group.expect(earliest);
    }
    expect(earliest);
  }
};

void one_sets_a_deadline_while_another_looks_at_its_group(Case& made) {
  auto& timers = made.make<GroupOfTimers>();
  timers.group.expect(kSoon);
  timers.schedule.expect(kSoon);
  made.thread("channel", [&timers] { timers.set_deadline_of_one(kLater); });
  made.thread("port", [&timers] { timers.run_groups(kSoon); });
  made.finally([&timers] {
    model::require(timers.group.at() <= kLater, "its group expects the deadline");
    model::require(timers.schedule.earliest() <= kLater, "and so does the port");
  });
}

TEST(ModelRoceSchedule, Deadline_SetWhileItsGroupIsLookedAt_IsExpected) {
  model::expect_holds(one_sets_a_deadline_while_another_looks_at_its_group);
}
TEST(ModelRoceSchedule, Deadline_SetWhileAllAreLookedAt_IsExpected) {
  model::expect_holds(one_sets_a_deadline_while_another_looks_at_all);
}
TEST(ModelRoceSchedule, Deadline_SetWhileThePortFallsAsleep_WakesIt) {
  model::expect_holds(the_port_sleeps_while_one_sets_a_deadline);
}
TEST(ModelRoceSchedule, Deadlines_LookedAtWhileThePortFallsAsleep_WakeIt) {
  model::expect_holds(the_port_sleeps_while_another_looks_at_all);
}

TEST(ModelRoceSchedule, Orders_AreAsStrongAsTheCasesNeed) {
  const Build cases[] = {one_sets_a_deadline_while_another_looks_at_all, the_port_sleeps_while_one_sets_a_deadline,
                         the_port_sleeps_while_another_looks_at_all};
  EXPECT_EQ(model::needed_orders(cases, {"progress/schedule.h", "roce/port/deadlines.h"}),
            (::std::vector<::std::string>{
                "Schedule::expect load seq_cst: x86 relaxed, C++ seq_cst",
                "Schedule::expect failure seq_cst: x86 relaxed, C++ relaxed",
                "Schedule::expect compare_exchange seq_cst: x86 relaxed, C++ seq_cst",
                "Schedule::expect load seq_cst 2: x86 relaxed, C++ seq_cst",
                "Schedule::forget store seq_cst: x86 seq_cst, C++ seq_cst",
                "Schedule::fall_asleep store seq_cst: x86 seq_cst, C++ seq_cst",
                "Schedule::fall_asleep load seq_cst: x86 relaxed, C++ seq_cst",
                "Schedule::sleep_until store seq_cst: x86 relaxed, C++ relaxed",
                "Schedule::wake_up store seq_cst: x86 relaxed, C++ relaxed",
                "Deadline::at load seq_cst: x86 relaxed, C++ seq_cst",
                "Deadline::set store seq_cst: x86 seq_cst, C++ seq_cst",
            }));
}

}  // namespace
}  // namespace nupa::roce
