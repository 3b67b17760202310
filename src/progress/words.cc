// SPDX-License-Identifier: Apache-2.0
#include "progress/words.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "base/fence.h"
#include "progress/waiter.h"

namespace nupa::progress {
namespace {

int futex(const std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* limit) {
  return static_cast<int>(syscall(SYS_futex, word, operation, value, limit, nullptr, 0));
}

/// Acts as a full fence in all other threads and processes: a store that one of them did before its next load is
/// visible before that load. False: the kernel does not support it.
bool fence_others() { return syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0; }

}  // namespace

void use_sleeper_fences() { syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0); }

void wake_all(const std::atomic<uint32_t>& word) { futex(&word, FUTEX_WAKE, INT_MAX, nullptr); }

void sleep_while(const std::atomic<uint32_t>& word, uint32_t value) {
  // Wake-ups do not come when the memory of the word was lost meanwhile and other memory is mapped there.
  constexpr timespec limit{1, 0};
  futex(&word, FUTEX_WAIT, value, &limit);
}

bool WordSleep::announce(Fences fences) {
  for (size_t i = 0; i < count_; ++i) {
    values_[i] = waits_[i].word->load(std::memory_order_acquire);
    waits_[i].sleepers->fetch_add(1, std::memory_order_seq_cst);
  }
  // Either a writer sees that this thread sleeps, or this thread sees the word that it counted up.
  base::fence_after_update();
  return fences == Fences::kByWriters || fence_others();
}

bool WordSleep::is_any_over() const {
  return std::any_of(waits_, waits_ + count_, [](const WordWait& wait) { return wait.is_over(); });
}

Slept WordSleep::stay(bool certain, Deadline deadline) {
  const bool is_nap = !certain || !all_wake_ || count_ == 0;
  const int64_t now = now_ns();
  const bool time_is_up = sleep(std::min(deadline.left_ns(now), is_nap ? kWordNapNs : kLongestWordSleepNs), now);
  return time_is_up && deadline.passed() ? Slept::kLate : Slept::kWoken;
}

void WordSleep::leave() {
  for (size_t i = 0; i < count_; ++i) waits_[i].sleepers->fetch_sub(1, std::memory_order_relaxed);
}

bool WordSleep::sleep(int64_t ns, int64_t now) {
  if (count_ == 0) {
    sleep_for(ns);
    return true;
  }
  if (count_ == 1) {
    const timespec limit{ns / kNsPerSecond, ns % kNsPerSecond};
    return futex(waits_[0].word, FUTEX_WAIT, values_[0], &limit) < 0 && errno == ETIMEDOUT;
  }
  futex_waitv words[kMostWords] = {};
  for (size_t i = 0; i < count_; ++i) words[i] = {values_[i], reinterpret_cast<uint64_t>(waits_[i].word), FUTEX_32, 0};
  const int64_t end = now + ns;
  const timespec until{end / kNsPerSecond, end % kNsPerSecond};
  if (syscall(SYS_futex_waitv, words, count_, 0, &until, CLOCK_MONOTONIC) >= 0) return false;
  if (errno != ENOSYS && errno != EPERM) return errno == ETIMEDOUT;
  sleep_for(std::min(ns, kWordNapNs));
  return true;
}

}  // namespace nupa::progress
