#include "ccl/mapped/group.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

#include "base/clock.h"

namespace nupa::ccl {
namespace {

/// Who sleeps looks by itself after this time, where a ring of the bell may have been missed.
constexpr int64_t kLongestSleepNs = 100'000'000;
constexpr int64_t kUncertainSleepNs = 1'000'000;
/// Looks between two at the clock and at abort().
constexpr uint32_t kLooks = 64;
constexpr int64_t kNsPerSecond = 1'000'000'000;

/// Makes each store that another process has done before its next load be seen before that load, as a fence there
/// would, which would cost every step. False: the kernel cannot.
bool fence_others() {
  static const bool registered = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
  return registered && syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0;
}

int futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* limit) {
  return static_cast<int>(syscall(SYS_futex, word, operation, value, limit, nullptr, 0));
}

}  // namespace

MappedGroup::MappedGroup(uint32_t rank, std::vector<std::byte*> arenas, size_t slot_bytes, int64_t spin_ns)
    : rank_(rank),
      arenas_(std::move(arenas)),
      layout_(static_cast<uint32_t>(arenas_.size()), slot_bytes),
      marks_here_(reinterpret_cast<const Mark*>(arenas_[rank] + layout_.marks())),
      spin_ns_(spin_ns) {
  // Others may ring from now on.
  fence_others();
}

uint32_t MappedGroup::begin(uint32_t steps) {
  const uint32_t before = step_;
  step_ += steps;
  return before;
}

void MappedGroup::wake(uint32_t rank) {
  ArenaHead& head = head_of(rank);
  // The step is stored before this is loaded, as far as the compiler is asked; the processor is by who sleeps.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (head.sleeps.load(std::memory_order_relaxed) == 0) return;
  head.bell.fetch_add(1, std::memory_order_release);
  futex(&head.bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void MappedGroup::tell(uint32_t rank, uint32_t step) {
  auto* const marks = reinterpret_cast<Mark*>(arenas_[rank] + layout_.marks());
  marks[rank_].step.store(step, std::memory_order_release);
  wake(rank);
}

void MappedGroup::tell(uint32_t step) {
  for (uint32_t i = 1; i < ranks(); ++i) tell((rank_ + i) % ranks(), step);
}

void MappedGroup::write_line(uint32_t to, uint32_t turn, const void* payload, size_t length, uint32_t step) {
  FlagLine& line = lines_of(arenas_[to], turn)[rank_];
  copy_array(line.payload, payload, length);
  line.step.store(step, std::memory_order_release);
  wake(to);
}

void MappedGroup::abort(int error) {
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    uint32_t none = 0;
    head_of(rank).aborted.compare_exchange_strong(none, static_cast<uint32_t>(error), std::memory_order_acq_rel);
    wake(rank);
  }
}

void MappedGroup::sleep(const Wait& wait, int64_t until_ns) {
  ArenaHead& head = head_of(rank_);
  const uint32_t bell = head.bell.load(std::memory_order_acquire);
  head.sleeps.store(1, std::memory_order_seq_cst);
  // Either the other one sees that somebody sleeps, or its step is seen here.
  const bool certain = fence_others();
  if (!wait.is_over() && aborted() == 0) {
    const int64_t longest = certain ? kLongestSleepNs : kUncertainSleepNs;
    const int64_t left = std::clamp<int64_t>(until_ns - base::now_ns(), 0, longest);
    const timespec limit{left / kNsPerSecond, left % kNsPerSecond};
    futex(&head.bell, FUTEX_WAIT, bell, &limit);
  }
  head.sleeps.store(0, std::memory_order_relaxed);
}

int MappedGroup::run(Steps& steps, int64_t limit_ns) {
  if (aborted() != 0) {
    steps.end(aborted());
    return steps.result();
  }
  while (!steps.go_on()) {
    const Wait wait = steps.waits_for();
    for (uint32_t i = 0; i < kLooks && !wait.is_over(); ++i) _mm_pause();
    if (wait.is_over()) continue;
    const int64_t began = base::now_ns();
    int64_t now = began;
    while (!wait.is_over() && aborted() == 0 && now - began < limit_ns) {
      if (now - began < spin_ns_)
        for (uint32_t i = 0; i < kLooks && !wait.is_over(); ++i) _mm_pause();
      else
        sleep(wait, began + limit_ns);
      now = base::now_ns();
    }
    if (wait.is_over()) continue;
    if (aborted() == 0) abort(ETIMEDOUT);
    steps.end(aborted());
    break;
  }
  return steps.result();
}

}  // namespace nupa::ccl
