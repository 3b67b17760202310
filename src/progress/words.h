// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "progress/deadline.h"
#include <nupa/export.h>

namespace nupa::progress {

/// A word that only counts up (and wraps), and the value that a thread waits for. The word may lie in memory that
/// processes share. Before a thread counts it up, it has finished the work that the value stands for: count_up()
/// releases that work, and is_over() acquires it.
struct WordWait {
  const std::atomic<uint32_t>* word = nullptr;
  /// The number of threads that sleep until the word changes. Null: no thread wakes them.
  std::atomic<uint32_t>* sleepers = nullptr;
  uint32_t value = 0;

  bool is_over() const { return static_cast<int32_t>(word->load(std::memory_order_acquire) - value) >= 0; }
};

/// The thread that pays for the full barrier between a word and its count of sleepers. Either the writer pays each time
/// that it counts up, or the sleeper pays when it goes to sleep: the kernel then interrupts all other threads
/// (membarrier(2)). All users of a word must use the same.
///
/// The reason for the barrier: a writer stores the word and then looks at the count, and a sleeper stores the count and
/// then looks at the word. Each processor, x86 too, may execute such a load before the store, so both sides need a full
/// barrier. The sleeper's is in announce(). With kBySleepers the writer has a barrier of the compiler only, and
/// membarrier(2) acts as a full barrier at some point of its program. So the sleeper sees the writer's store after the
/// call, or the writer's load comes after the call and sees the count. This holds on every processor.
enum class Fences : uint8_t { kByWriters, kBySleepers };

/// Call it in each process before its first wake() with kBySleepers. Any thread.
NUPA_EXPORT void use_sleeper_fences();

/// Wakes all threads that sleep at the word, without reading their count. Any thread, signal handlers too.
NUPA_EXPORT void wake_all(const std::atomic<uint32_t>& word);

/// Counts a word up, and wakes all threads that sleep at it. Several threads and processes may do so at the same time.
/// No sleeper is counted: the caller knows that there may be one. Any thread, no lock, signal handlers too.
inline void ring_word(std::atomic<uint32_t>& word) {
  word.fetch_add(1, std::memory_order_seq_cst);
  wake_all(word);
}

/// Sleeps while the word has this value, which the caller has read. May return without a reason.
NUPA_EXPORT void sleep_while(const std::atomic<uint32_t>& word, uint32_t value);

/// Call it after a word was counted up. Costs one load if no thread sleeps at it. Any thread, no lock, signal handlers
/// too.
inline void wake(const std::atomic<uint32_t>& word, const std::atomic<uint32_t>& sleepers, Fences fences) {
  if (fences == Fences::kByWriters)
    std::atomic_thread_fence(std::memory_order_seq_cst);
  else
    std::atomic_signal_fence(std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_relaxed) != 0) [[unlikely]]
    wake_all(word);
}

/// Counts a word up, and wakes all threads that sleep at it. One thread at a time for each word.
inline void count_up(std::atomic<uint32_t>& word, uint32_t value, const std::atomic<uint32_t>& sleepers,
                     Fences fences) {
  word.store(value, std::memory_order_release);
  wake(word, sleepers, fences);
}

/// The longest sleep, because a process may die without waking the sleepers.
inline constexpr int64_t kLongestWordSleepNs = 100 * kNsPerMs;
/// The longest sleep if a word may be counted up without a call that wakes.
inline constexpr int64_t kWordNapNs = 100 * kNsPerUs;

enum class Slept : uint8_t {
  kWoken,      ///< a word changed, or it is time to check again
  kOver,       ///< a word had reached its value before the sleep
  kNotWanted,  ///< `wanted()` was false before the sleep
  kLate,       ///< the deadline has passed
};

/// One sleep at up to 64 words. On the stack of the thread that sleeps.
class WordSleep {
 public:
  static constexpr size_t kMostWords = 64;

  /// False: no thread wakes sleepers of this word, or the sleep has 64 words. Then run() takes a nap (kWordNapNs) at
  /// most.
  bool add(const WordWait& wait) {
    const bool wakes = wait.sleepers != nullptr && count_ < kMostWords;
    if (wakes) waits_[count_++] = wait;
    all_wake_ = all_wake_ && wakes;
    return wakes;
  }
  /// Number of words of the sleep.
  size_t words() const { return count_; }
  /// True if each add() was true.
  bool all_wake() const { return all_wake_; }

  /// Sleeps until a word is counted up, kLongestWordSleepNs at most. `wanted()` is called when the writers already see
  /// this thread as a sleeper, so an event that is announced by wake_all() is not missed if `wanted()` checks for it. A
  /// caller that gets kOver or kNotWanted has to act on it: to call again at once is a busy loop. Linux before 5.16
  /// takes naps at several words.
  template <class Wanted>
  Slept run(Fences fences, Wanted&& wanted, Deadline deadline) {
    const bool certain = announce(fences);
    const Slept slept = is_any_over() ? Slept::kOver : !wanted() ? Slept::kNotWanted : stay(certain, deadline);
    leave();
    return slept;
  }

 private:
  /// Makes writers see a sleeper. False: a writer may not have seen it, and will not wake it.
  NUPA_EXPORT bool announce(Fences fences);
  NUPA_EXPORT bool is_any_over() const;
  NUPA_EXPORT Slept stay(bool certain, Deadline deadline);
  NUPA_EXPORT void leave();
  /// The system call. True: the time has passed.
  bool sleep(int64_t ns, int64_t now);

  WordWait waits_[kMostWords];
  uint32_t values_[kMostWords];
  size_t count_ = 0;
  bool all_wake_ = true;
};

}  // namespace nupa::progress
