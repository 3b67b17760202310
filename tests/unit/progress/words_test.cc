// SPDX-License-Identifier: Apache-2.0
#include "progress/words.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>
#include <thread>
#include <vector>

#include "../../support/sleeper.h"

namespace nupa::progress {
namespace {

using nupa::test::expect_woken;
using nupa::test::kSleeperLimitNs;
using nupa::test::kSleeperRounds;
using nupa::test::Sleeper;
using nupa::test::SleeperRounds;

constexpr int64_t kWordDeadlineNs = 2'000'000;

const auto always = [] { return true; };

/// A word that is slept at.
struct Word {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};

  WordWait reached(uint32_t target) { return {&value, &sleepers, target}; }
  void count(uint32_t to, Fences fences = Fences::kByWriters) { count_up(value, to, sleepers, fences); }
};

/// Until the word has come to the value.
void sleep_until(Word& word, uint32_t value, Fences fences) {
  while (!word.reached(value).is_over()) {
    WordSleep sleep;
    sleep.add(word.reached(value));
    sleep.run(fences, always, Deadline::never());
  }
}

TEST(ProgressWords, WordWait_WordThatWraps_IsOverUpToHalfOfAllNumbersAhead) {
  std::atomic<uint32_t> word{0};
  const auto is_over = [&](uint32_t now, uint32_t value) {
    word = now;
    return WordWait{&word, nullptr, value}.is_over();
  };
  EXPECT_TRUE(is_over(5, 5));
  EXPECT_FALSE(is_over(4, 5));
  EXPECT_TRUE(is_over(0, UINT32_MAX));
  EXPECT_FALSE(is_over(UINT32_MAX, 0));
  EXPECT_TRUE(is_over(0x7fffffff, 0));
  EXPECT_FALSE(is_over(0x80000000, 0));
}

TEST(ProgressWords, Run_WordIsCountedUp_Wakes) {
  for (const Fences fences : {Fences::kByWriters, Fences::kBySleepers}) {
    Word word;
    ASSERT_NO_FATAL_FAILURE(expect_woken(
        [&](uint32_t round) {
          sleep_until(word, round, fences);
          return 0;
        },
        [&](uint32_t round) { word.count(round, fences); }));
    EXPECT_EQ(0u, word.sleepers);
  }
}

TEST(ProgressWords, Run_AnotherProcessCountsUp_Wakes) {
  struct Shared {
    Word word;
    SleeperRounds rounds;
  };
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(MAP_FAILED, memory);
  auto* const shared = new (memory) Shared;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    shared->rounds.sleep_through([&](uint32_t round) {
      sleep_until(shared->word, round, Fences::kByWriters);
      return 0;
    });
    _exit(0);
  }
  shared->rounds.wake_through([&](uint32_t round) { shared->word.count(round); });
  shared->word.count(kSleeperRounds);  // so that the child ends in any case
  int status = -1;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
  EXPECT_EQ(kSleeperRounds, shared->rounds.done()) << "the sleeper was not woken";
  munmap(memory, sizeof(Shared));
}

TEST(ProgressWords, Run_TwoSleepAtOneWord_BothWake) {
  Word word;
  Sleeper second;
  std::atomic<uint32_t> begun{0};
  const int64_t end = now_ns() + kSleeperLimitNs;
  std::thread beside([&] {
    second.is_this_thread();
    for (uint32_t round = 1; round <= kSleeperRounds; ++round) {
      begun = round;
      sleep_until(word, round, Fences::kByWriters);
    }
  });
  expect_woken(
      [&](uint32_t round) {
        sleep_until(word, round, Fences::kByWriters);
        return 0;
      },
      [&](uint32_t round) {
        while (begun != round && now_ns() < end) std::this_thread::yield();
        second.await_asleep(end);
        word.count(round);
      });
  word.count(kSleeperRounds);  // so that it ends in any case
  beside.join();
}

TEST(ProgressWords, Run_AnyOfSeveralWordsIsCountedUp_Wakes) {
  Word words[3];
  ASSERT_NO_FATAL_FAILURE(expect_woken(
      [&](uint32_t round) {
        Word& counted = words[round % 3];
        const uint32_t next = round / 3 + 1;
        while (counted.value != next) {
          WordSleep sleep;
          for (Word& word : words) sleep.add(word.reached(&word == &counted ? next : word.value + 1));
          sleep.run(Fences::kByWriters, always, Deadline::never());
        }
        return 0;
      },
      [&](uint32_t round) { words[round % 3].count(round / 3 + 1); }));
  for (const Word& word : words) EXPECT_EQ(0u, word.sleepers);
}

TEST(ProgressWords, Run_WakeAll_WakesWithoutACountedWord) {
  Word word;
  std::atomic<uint32_t> said{0};
  expect_woken(
      [&](uint32_t round) {
        while (said != round) {
          WordSleep sleep;
          sleep.add(word.reached(1));
          sleep.run(
              Fences::kByWriters, [&] { return said != round; }, Deadline::never());
        }
        return 0;
      },
      [&](uint32_t round) {
        said = round;
        wake_all(word.value);
      });
}

TEST(ProgressWords, Run_WordHasComeAlready_DoesNotSleep) {
  Word words[2];
  words[1].value = 4;
  WordSleep sleep;
  sleep.add(words[0].reached(1));
  sleep.add(words[1].reached(3));
  int asked = 0;
  EXPECT_EQ(Slept::kOver, sleep.run(
                              Fences::kByWriters, [&] { return ++asked > 0; }, Deadline::never()));
  EXPECT_EQ(0, asked);
  for (const Word& word : words) EXPECT_EQ(0u, word.sleepers);
}

/// A word that is counted up by a thread that does not see the sleeper yet has another value than the kernel is told.
TEST(ProgressWords, Run_WordChangesBeforeTheSystemCall_DoesNotSleep) {
  const int64_t end = now_ns() + kSleeperLimitNs;
  for (uint32_t words = 1; words <= 2; ++words) {
    Word word;
    Word other;
    uint32_t round = 1;
    for (; round <= kSleeperRounds && now_ns() < end; ++round) {
      WordSleep sleep;
      sleep.add(word.reached(round));
      if (words == 2) sleep.add(other.reached(1));
      const auto count_silently = [&] {
        word.value = round;
        return true;
      };
      EXPECT_EQ(Slept::kWoken, sleep.run(Fences::kByWriters, count_silently, Deadline::never()));
    }
    EXPECT_GT(round, kSleeperRounds) << "it slept at " << words << " words";
  }
}

TEST(ProgressWords, Run_NotWanted_DoesNotSleep) {
  Word word;
  WordSleep sleep;
  sleep.add(word.reached(1));
  uint32_t seen = 0;
  const auto never = [&] {
    seen = word.sleepers;
    return false;
  };
  EXPECT_EQ(Slept::kNotWanted, sleep.run(Fences::kByWriters, never, Deadline::never()));
  EXPECT_EQ(1u, seen) << "the question comes before writers see the sleeper";
  EXPECT_EQ(0u, word.sleepers);
}

TEST(ProgressWords, Run_NobodyCountsUp_EndsAtTheDeadline) {
  for (size_t count = 1; count <= 2; ++count) {
    Word words[2];
    const Deadline deadline = Deadline::in_ns(kWordDeadlineNs);
    WordSleep sleep;
    for (size_t i = 0; i < count; ++i) sleep.add(words[i].reached(1));
    Slept slept = Slept::kWoken;
    for (int turn = 0; turn < 1'000 && slept == Slept::kWoken; ++turn)  // signals may end some
      slept = sleep.run(Fences::kByWriters, always, deadline);
    EXPECT_EQ(Slept::kLate, slept);
    EXPECT_TRUE(deadline.passed());
    for (const Word& word : words) EXPECT_EQ(0u, word.sleepers);
  }
}

TEST(ProgressWords, Run_DeadlineHasPassed_DoesNotSleep) {
  for (size_t count = 0; count <= 2; ++count) {
    Word words[2];
    const int64_t end = now_ns() + kSleeperLimitNs;
    uint32_t round = 1;
    for (; round <= kSleeperRounds && now_ns() < end; ++round) {
      WordSleep sleep;
      for (size_t i = 0; i < count; ++i) sleep.add(words[i].reached(1));
      EXPECT_EQ(Slept::kLate, sleep.run(Fences::kByWriters, always, Deadline::at(0)));
    }
    EXPECT_GT(round, kSleeperRounds) << "it slept at " << count << " words";
  }
}

TEST(ProgressWords, Run_NoDeadline_LooksAgainByItself) {
  Word word;
  WordSleep sleep;
  sleep.add(word.reached(1));
  EXPECT_EQ(Slept::kWoken, sleep.run(Fences::kByWriters, always, Deadline::never()));
}

TEST(ProgressWords, Add_MoreWordsThanThereIsRoom_IsRefused) {
  std::vector<Word> words(WordSleep::kMostWords + 1);
  WordSleep sleep;
  for (size_t i = 0; i < WordSleep::kMostWords; ++i) EXPECT_TRUE(sleep.add(words[i].reached(1)));
  EXPECT_TRUE(sleep.all_wake());
  EXPECT_FALSE(sleep.add(words.back().reached(1)));
  EXPECT_FALSE(sleep.all_wake());
  EXPECT_EQ(WordSleep::kMostWords, sleep.words());
}

/// The last of 65 words, and a word that nobody wakes at, are looked at again soon.
TEST(ProgressWords, Run_AWordWasRefused_TakesANap) {
  for (const size_t awake : {size_t{0}, WordSleep::kMostWords}) {
    std::vector<Word> words(awake + 1);
    Word& last = words.back();
    ASSERT_NO_FATAL_FAILURE(expect_woken(
        [&](uint32_t round) {
          const int64_t end = now_ns() + kSleeperLimitNs;
          while (!last.reached(round).is_over()) {
            if (now_ns() >= end) return 1;
            WordSleep sleep;
            for (size_t i = 0; i < awake; ++i) sleep.add(words[i].reached(1));
            sleep.add({&last.value, awake == 0 ? nullptr : &last.sleepers, round});
            sleep.run(Fences::kByWriters, always, Deadline::never());
          }
          return 0;
        },
        [&](uint32_t round) { last.value = round; }));
  }
}

TEST(ProgressWords, Run_NoWords_TakesANap) {
  const int64_t begun = now_ns();
  WordSleep sleep;
  EXPECT_EQ(Slept::kWoken, sleep.run(Fences::kByWriters, always, Deadline::never()));
  EXPECT_GE(now_ns(), begun + kWordNapNs);
}

/// For this thread, to its end.
bool forbid_futex_waitv(uint32_t error) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex_waitv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(ProgressWords, Run_KernelSleepsAtOneWordOnly_TakesANap) {
  for (const int error : {ENOSYS, EPERM}) {
    std::thread([&] {
      if (!forbid_futex_waitv(static_cast<uint32_t>(error))) GTEST_SKIP() << "no seccomp filter";
      Word words[2];
      const int64_t begun = now_ns();
      WordSleep sleep;
      for (Word& word : words) sleep.add(word.reached(1));
      EXPECT_EQ(Slept::kWoken, sleep.run(Fences::kByWriters, always, Deadline::never()));
      EXPECT_GE(now_ns(), begun + kWordNapNs);
    }).join();
  }
}

}  // namespace
}  // namespace nupa::progress
