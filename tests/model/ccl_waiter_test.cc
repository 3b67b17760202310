// SPDX-License-Identifier: Apache-2.0
#include "shadow.h"
#include "expect.h"

namespace nupa::progress {

/// Of this case: whether the kernel has membarrier(2).
inline bool has_membarrier = true;

inline long refused() {
  errno = EAGAIN;
  return -1;
}

/// futex(2): each word has a queue, and waiting and waking are one step each in its order. The value is looked at with
/// the queue's lock held.
inline void* queue_of(const void* word) { return const_cast<char*>(static_cast<const char*>(word)) + 1; }
inline model::Site futex_site() { return {model::Where::current(), "futex", std::memory_order_acq_rel}; }
inline uint64_t change_queue(const void* word, uint64_t by) {
  return model::operations::update(
      queue_of(word), 0, std::memory_order_acq_rel, std::memory_order_acquire,
      [by](uint64_t old, uint64_t* fresh) {
        *fresh = old + by;
        return true;
      },
      futex_site());
}

inline long syscall(long number, const std::atomic<uint32_t>* word, int operation, uint32_t value,
                    const timespec* limit, ::std::nullptr_t, int) {
  model::require(number == SYS_futex, "the system call is known");
  if (operation == FUTEX_WAKE) {
    change_queue(word, 1);
    return 0;
  }
  const uint64_t before = change_queue(word, 0);
  if (word->load(std::memory_order_relaxed) != value) return refused();
  constexpr long kShortNs = 1'000'000;
  if (limit->tv_sec == 0 && limit->tv_nsec < kShortNs) {
    // It looks again by itself, in the end at what has changed.
    model::operations::await(word, 0, std::memory_order_relaxed, [value](uint64_t now) { return now != value; });
    return refused();
  }
  model::operations::await(queue_of(word), 0, std::memory_order_acquire,
                           [before](uint64_t now) { return now != before; });
  return 0;
}

inline long syscall(long number, const futex_waitv* words, size_t count, int, const timespec*, int) {
  model::require(number == SYS_futex_waitv, "the system call is known");
  uint64_t before[4];
  for (size_t i = 0; i < count; ++i) {
    const auto* word = reinterpret_cast<const std::atomic<uint32_t>*>(words[i].uaddr);
    before[i] = change_queue(word, 0);
    if (word->load(std::memory_order_relaxed) != words[i].val) return refused();
  }
  for (;;) {
    for (size_t i = 0; i < count; ++i) {
      const void* word = reinterpret_cast<const void*>(words[i].uaddr);
      if (model::operations::load(queue_of(word), 0, std::memory_order_acquire, futex_site()) != before[i]) return 0;
    }
    model::pause();
  }
}

inline long syscall(long, int command, int, int) {
  if (command != MEMBARRIER_CMD_GLOBAL_EXPEDITED) return 0;
  if (!has_membarrier) return -1;
  model::operations::fence(std::memory_order_seq_cst, model::Weight::kHeavy,
                           {model::Where::current(), "fence", std::memory_order_seq_cst});
  return 0;
}

}  // namespace nupa::progress

// The lines that are checked.
#include "progress/words.cc"
#include "ccl/coroutine/waiter.cc"

namespace nupa::ccl {
namespace {

using model::Build;
using model::Case;
using progress::count_up;
using progress::has_membarrier;

class Nothing final : public ProgressHooks {
 public:
  Cause ended() const override { return {}; }
  Cause on_timeout(const Wait&) override { return {}; }
};

/// A line of flags as ranks have it between them.
struct Line {
  std::atomic<uint32_t> word{}, other_word{};
  std::atomic<uint32_t> sleepers{}, other_sleepers{};
  uint32_t data = 0;

  Wait wait(uint32_t value) { return {&word, value, 0, &sleepers}; }
  Wait other_wait(uint32_t value) { return {&other_word, value, 1, &other_sleepers}; }
};

WaitRules rules(bool shares_cores) { return {0, shares_cores}; }

/// Past the turns of looking: each is a sleep.
template <size_t N>
void wait_for_all(const Wait (&waits)[N], const WaitRules& how) {
  Nothing hooks;
  ::std::vector<Wait> left(waits, waits + N);
  for (int turn = 1;; ++turn) {
    ::std::erase_if(left, [](const Wait& wait) { return wait.is_over(); });
    if (left.empty()) return;
    wait_a_turn(left, how, hooks, turn, 0, INT64_MAX);
  }
}

void add_sleeper(Case& made, const char* name, Line& line, bool shares_cores, uint32_t value) {
  made.thread(name, [&line, shares_cores, value] {
    wait_for_all({line.wait(value)}, rules(shares_cores));
    model::note_access(&line.data, sizeof line.data, false);
    model::require(line.data == value, "what the flag stands for is there");
  });
}

void add_teller(Case& made, Line& line, bool shares_cores, uint32_t count) {
  made.thread("teller", [&line, shares_cores, count] {
    model::note_access(&line.data, sizeof line.data, true);
    line.data = count;
    for (uint32_t value = 1; value <= count; ++value)
      count_up(line.word, value, line.sleepers, rules(shares_cores).fences());
  });
}

template <bool kSharesCores>
void sleeps_for_one_value(Case& made) {
  has_membarrier = true;
  auto& line = made.make<Line>();
  add_sleeper(made, "sleeper", line, kSharesCores, 1);
  add_teller(made, line, kSharesCores, 1);
}

template <bool kSharesCores>
void sleeps_for_the_second_value(Case& made) {
  has_membarrier = true;
  auto& line = made.make<Line>();
  add_sleeper(made, "sleeper", line, kSharesCores, 2);
  add_teller(made, line, kSharesCores, 2);
}

void two_sleep_at_one_word(Case& made) {
  has_membarrier = true;
  auto& line = made.make<Line>();
  add_sleeper(made, "sleeper 1", line, true, 1);
  add_sleeper(made, "sleeper 2", line, true, 1);
  add_teller(made, line, true, 1);
}

/// One sleeps at two words at once, each of which somebody else counts up.
template <bool kSharesCores>
void sleeps_at_two_words(Case& made) {
  has_membarrier = true;
  auto& line = made.make<Line>();
  made.thread("sleeper", [&line] { wait_for_all({line.wait(1), line.other_wait(1)}, rules(kSharesCores)); });
  made.thread("teller 1", [&line] { count_up(line.word, 1, line.sleepers, rules(kSharesCores).fences()); });
  made.thread("teller 2", [&line] { count_up(line.other_word, 1, line.other_sleepers, rules(kSharesCores).fences()); });
}

void sleeps_where_the_kernel_has_no_membarrier(Case& made) {
  has_membarrier = false;
  auto& line = made.make<Line>();
  add_sleeper(made, "sleeper", line, false, 1);
  add_teller(made, line, false, 1);
}

TEST(ModelCclWaiter, SharedCores_OneValue_WakesTheSleeper) { model::expect_holds(sleeps_for_one_value<true>); }
TEST(ModelCclWaiter, SharedCores_SecondValue_WakesTheSleeper) {
  model::expect_holds(sleeps_for_the_second_value<true>);
}
TEST(ModelCclWaiter, SharedCores_TwoSleepers_BothWake) { model::expect_holds(two_sleep_at_one_word); }
TEST(ModelCclWaiter, SharedCores_TwoWords_EitherWakesTheSleeper) { model::expect_holds(sleeps_at_two_words<true>); }
TEST(ModelCclWaiter, OwnCores_OneValue_WakesTheSleeper) { model::expect_holds(sleeps_for_one_value<false>); }
TEST(ModelCclWaiter, OwnCores_SecondValue_WakesTheSleeper) { model::expect_holds(sleeps_for_the_second_value<false>); }
TEST(ModelCclWaiter, OwnCores_TwoWords_EitherWakesTheSleeper) { model::expect_holds(sleeps_at_two_words<false>); }
TEST(ModelCclWaiter, OwnCores_NoMembarrier_TheSleeperLooksAgain) {
  model::expect_holds(sleeps_where_the_kernel_has_no_membarrier);
}

TEST(ModelCclWaiter, Orders_AreAsStrongAsTheCasesNeed) {
  const Build cases[] = {sleeps_for_one_value<true>, sleeps_for_one_value<false>, sleeps_for_the_second_value<true>};
  EXPECT_EQ(model::needed_orders(cases, {"progress/words.h", "progress/words.cc", "base/fence.h"}),
            (::std::vector<::std::string>{
                "WordWait::is_over load acquire: x86 relaxed, C++ acquire",
                "progress::wake fence seq_cst: x86 seq_cst, C++ seq_cst",
                "progress::wake fence seq_cst 2: x86 none, C++ seq_cst",
                "progress::wake load relaxed: x86 relaxed, C++ relaxed",
                "progress::count_up store release: x86 relaxed, C++ release",
                "WordSleep::announce load acquire: x86 relaxed, C++ relaxed",
                "WordSleep::announce fetch_add seq_cst: x86 relaxed, C++ relaxed",
                "WordSleep::leave fetch_sub relaxed: x86 relaxed, C++ relaxed",
                "base::fence_after_update fence seq_cst: x86 none, C++ seq_cst",
            }));
}

}  // namespace
}  // namespace nupa::ccl
