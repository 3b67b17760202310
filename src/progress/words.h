// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "progress/deadline.h"
#include <nupa/export.h>

namespace nupa::progress {

/// A word that only counts up (and wraps), and the value that it has to come to. The word may lie in memory that
/// processes share. The thread that counts it up has done before what the value stands for.
struct WordWait {
  const std::atomic<uint32_t>* word = nullptr;
  /// How many threads sleep until the word changes. Null: nobody wakes them.
  std::atomic<uint32_t>* sleepers = nullptr;
  uint32_t value = 0;

  bool is_over() const { return static_cast<int32_t>(word->load(std::memory_order_acquire) - value) >= 0; }
};

/// Which thread pays for the full barrier between a word and its count of sleepers: the one that counts up, each time,
/// or the one that falls asleep, for which the kernel interrupts all others (membarrier(2)). The same for all that use
/// a word.
enum class Fences : uint8_t { kByWriters, kBySleepers };

/// To be called in each process before its first wake() with kBySleepers. Any thread.
NUPA_EXPORT void use_sleeper_fences();

/// Wakes all that sleep at the word, without a look at their count. Any thread, signal handlers too.
NUPA_EXPORT void wake_all(const std::atomic<uint32_t>& word);

/// To be called after a word was counted up: one load if nobody sleeps at it. Any thread, no lock, signal handlers too.
inline void wake(const std::atomic<uint32_t>& word, const std::atomic<uint32_t>& sleepers, Fences fences) {
  if (fences == Fences::kByWriters)
    std::atomic_thread_fence(std::memory_order_seq_cst);
  else
    std::atomic_signal_fence(std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_relaxed) != 0) [[unlikely]]
    wake_all(word);
}

/// Counts a word up, and wakes all that sleep at it. One thread at a time for each word.
inline void count_up(std::atomic<uint32_t>& word, uint32_t value, const std::atomic<uint32_t>& sleepers,
                     Fences fences) {
  word.store(value, std::memory_order_release);
  wake(word, sleepers, fences);
}

/// A sleep lasts no longer, since a process may die without waking anybody.
inline constexpr int64_t kLongestWordSleepNs = 100 * kNsPerMs;
/// A sleep lasts no longer where a word may be counted up without a call that wakes.
inline constexpr int64_t kWordNapNs = 100 * kNsPerUs;

enum class Slept : uint8_t {
  kWoken,      ///< a word changed, or it is time to look again
  kOver,       ///< a word had come to its value, and nothing was slept
  kNotWanted,  ///< nothing was slept
  kLate,       ///< the deadline has passed
};

/// One sleep at up to 64 words. On the stack of the thread that sleeps.
class WordSleep {
 public:
  static constexpr size_t kMostWords = 64;

  /// False: nobody wakes at this word, or the sleep has 64 words. Then run() takes a nap (kWordNapNs) at most.
  bool add(const WordWait& wait) {
    const bool wakes = wait.sleepers != nullptr && count_ < kMostWords;
    if (wakes) waits_[count_++] = wait;
    all_wake_ = all_wake_ && wakes;
    return wakes;
  }
  /// Words of the sleep.
  size_t words() const { return count_; }
  /// Whether each add() was true.
  bool all_wake() const { return all_wake_; }

  /// Sleeps until a word is counted up, kLongestWordSleepNs at most. `wanted()` is asked when the writers see that this
  /// thread sleeps: an event that is told by wake_all() is not missed if it looks for it. A caller that gets kOver or
  /// kNotWanted has to act on it: to come back at once is a busy loop. Linux before 5.16 takes naps at several words.
  template <class Wanted>
  Slept run(Fences fences, Wanted&& wanted, Deadline deadline) {
    const bool certain = announce(fences);
    const Slept slept = is_any_over() ? Slept::kOver : !wanted() ? Slept::kNotWanted : stay(certain, deadline);
    leave();
    return slept;
  }

 private:
  /// From here on writers see a sleeper. False: one of them may not have seen it, and will not wake it.
  NUPA_EXPORT bool announce(Fences fences);
  NUPA_EXPORT bool is_any_over() const;
  NUPA_EXPORT Slept stay(bool certain, Deadline deadline);
  NUPA_EXPORT void leave();
  /// The system call. True: the time is up.
  bool sleep(int64_t ns, int64_t now);

  WordWait waits_[kMostWords];
  uint32_t values_[kMostWords];
  size_t count_ = 0;
  bool all_wake_ = true;
};

}  // namespace nupa::progress
