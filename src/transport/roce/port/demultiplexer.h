// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "core/seam/slot_table.h"
#include "shm/layout.h"
#include "transport/roce/port/qp_receiver.h"

namespace nupa::roce {

/// The queue-pair receivers of a port by queue pair number: finds the one a packet is for, and those with a due timer.
/// The numbers of one slot of this process make a bank. 64 neighbouring numbers make a group with its own deadline, so
/// that the timers of many queue pairs cost a look at few of them. Any thread, except where stated.
class Demultiplexer {
 public:
  /// Returns null if no queue pair has that number. Its place may hold a queue pair with another number, if the former
  /// one was destroyed.
  QpReceiver* find(uint32_t number) const {
    const Bank* const bank = banks_.of(number);
    if (bank == nullptr) return nullptr;
    QpReceiver* const queue_pair = bank->queue_pairs[shm::index_of(number)].load(std::memory_order_acquire);
    return queue_pair != nullptr && queue_pair->number() == number ? queue_pair : nullptr;
  }

  /// After this, add() of that number allocates nothing. Returns true if it is the first number of its slot. Throws
  /// std::bad_alloc.
  bool make_place(uint32_t number);
  /// The number of queue pairs that have a place.
  size_t places() const;
  void add(QpReceiver& queue_pair);
  /// find() does not return it any more. Threads that found it before may still use it.
  void remove(const QpReceiver& queue_pair);

  /// Calls `visit(queue_pair)` with each queue-pair receiver until it returns false.
  template <class Visit>
  void each(Visit&& visit) const;

  /// The queue pair's deadline() is `deadline` from now on.
  void expect(const QpReceiver& queue_pair, int64_t deadline) const {
    if (queue_pair.timers_ != nullptr) queue_pair.timers_->expect(deadline);
  }
  /// Calls `run(queue_pair)` for each queue pair whose deadline has come. `run` returns when to try it again, or
  /// nothing: the queue pair was called, and its deadline() counts. Returns the earliest time that is left. Under the
  /// poller's lock.
  template <class Run>
  int64_t run_timers(int64_t now, Run&& run);

 private:
  static constexpr uint32_t kGroup = 64;  ///< queue pairs whose deadlines are looked at together
  /// The queue pairs with the numbers of one slot.
  struct Bank {
    std::array<std::atomic<QpReceiver*>, shm::kSlotQp> queue_pairs{};
    std::array<Earliest, shm::kSlotQp / kGroup> timers;  ///< by group
    std::atomic<uint32_t> high_water{0};                 ///< no queue pair was ever at or above this index
  };

  /// Calls the group's queue pairs whose deadline has come. Returns the earliest deadline after that.
  template <class Run>
  static int64_t run_group(Bank& bank, uint32_t group, int64_t now, Run& run);

  core::SlotTable<Bank> banks_;
};

template <class Visit>
void Demultiplexer::each(Visit&& visit) const {
  bool goes_on = true;
  banks_.each([&](const Bank& bank) {
    const uint32_t count = bank.high_water.load();
    for (uint32_t i = 0; i < count && goes_on; ++i)
      if (QpReceiver* const queue_pair = bank.queue_pairs[i].load(std::memory_order_acquire); queue_pair != nullptr)
        goes_on = visit(*queue_pair);
  });
}

template <class Run>
int64_t Demultiplexer::run_timers(int64_t now, Run&& run) {
  int64_t earliest = INT64_MAX;
  banks_.each([&](Bank& bank) {
    const uint32_t groups = (bank.high_water.load() + kGroup - 1) / kGroup;
    for (uint32_t group = 0; group < groups; ++group) {
      const int64_t first = bank.timers[group].at();
      earliest = std::min(earliest, first > now ? first : run_group(bank, group, now, run));
    }
  });
  return earliest;
}

template <class Run>
int64_t Demultiplexer::run_group(Bank& bank, uint32_t group, int64_t now, Run& run) {
  bank.timers[group].forget();
  int64_t earliest = INT64_MAX;
  for (uint32_t i = group * kGroup; i < (group + 1) * kGroup; ++i) {
    QpReceiver* const queue_pair = bank.queue_pairs[i].load(std::memory_order_acquire);
    if (queue_pair == nullptr) continue;
    if (queue_pair->deadline() <= now) {
      if (const std::optional<int64_t> again = run(*queue_pair)) {
        earliest = std::min(earliest, *again);
        continue;
      }
    }
    earliest = std::min(earliest, queue_pair->deadline());
  }
  bank.timers[group].expect(earliest);
  return earliest;
}

}  // namespace nupa::roce
