// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "core/seam/slot_table.h"
#include "shm/layout.h"
#include "transport/roce/port/channel.h"

namespace nupa::roce {

/// The queue-pair receivers of a port by queue pair number: finds the one a packet is for, and those with a due timer.
/// The numbers of one slot of this process make a bank. 64 neighbouring numbers make a group with its own deadline, so
/// that the timers of many queue pairs cost a look at few of them. Any thread, except where stated.
class Demultiplexer {
 public:
  /// Returns null if no queue pair has that number. Its place may hold a queue pair with another number, if the former
  /// one was destroyed.
  Channel* find(uint32_t number) const {
    const Bank* const bank = banks_.of(number);
    if (bank == nullptr) return nullptr;
    Channel* const channel = bank->channels[shm::index_of(number)].load(std::memory_order_acquire);
    return channel != nullptr && channel->number() == number ? channel : nullptr;
  }

  /// After this, add() of that number allocates nothing. Returns true if it is the first number of its slot. Throws
  /// std::bad_alloc.
  bool make_place(uint32_t number);
  /// The number of queue pairs that have a place.
  size_t places() const;
  void add(Channel& channel);
  /// find() does not return it any more. Threads that found it before may still use it.
  void remove(const Channel& channel);

  /// Calls `visit(channel)` with each queue-pair receiver until it returns false.
  template <class Visit>
  void each(Visit&& visit) const;

  /// The queue pair's deadline() is `deadline` from now on.
  void expect(const Channel& channel, int64_t deadline) const {
    if (channel.timers_ != nullptr) channel.timers_->expect(deadline);
  }
  /// Calls `run(channel)` for each queue pair whose deadline has come. `run` returns when to try it again, or nothing:
  /// the queue pair was called, and its deadline() counts. Returns the earliest time that is left. Under the poller's
  /// lock.
  template <class Run>
  int64_t run_timers(int64_t now, Run&& run);

 private:
  static constexpr uint32_t kGroup = 64;  ///< queue pairs whose deadlines are looked at together
  /// The queue pairs with the numbers of one slot.
  struct Bank {
    std::array<std::atomic<Channel*>, shm::kSlotQp> channels{};
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
      if (Channel* const channel = bank.channels[i].load(std::memory_order_acquire); channel != nullptr)
        goes_on = visit(*channel);
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
    Channel* const channel = bank.channels[i].load(std::memory_order_acquire);
    if (channel == nullptr) continue;
    if (channel->deadline() <= now) {
      if (const std::optional<int64_t> again = run(*channel)) {
        earliest = std::min(earliest, *again);
        continue;
      }
    }
    earliest = std::min(earliest, channel->deadline());
  }
  bank.timers[group].expect(earliest);
  return earliest;
}

}  // namespace nupa::roce
