// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "shm/layout.h"

namespace nupa::core {

/// One Bank for each slot of a process, found by a queue pair number with one load. Its memory grows with the slots;
/// the table itself takes 32 KiB. Any thread. A bank exists as long as the table. make() releases a bank, and of() and
/// each() acquire it.
template <class Bank>
class SlotTable {
 public:
  SlotTable() = default;
  ~SlotTable() {
    for (Entry* entry = first_.load(); entry != nullptr;) delete std::exchange(entry, entry->next);
  }
  SlotTable(const SlotTable&) = delete;
  SlotTable& operator=(const SlotTable&) = delete;

  /// Null: the number's slot has no bank.
  Bank* of(uint32_t number) const { return place_of(number).load(std::memory_order_acquire); }
  /// Returns the bank of the number's slot and makes it if there is none. Throws std::bad_alloc.
  Bank& make(uint32_t number) {
    std::lock_guard lock(mutex_);
    if (Bank* const there = of(number)) return *there;
    auto* const entry = new Entry;
    entry->next = first_.load(std::memory_order_relaxed);
    first_.store(entry, std::memory_order_release);
    place_of(number).store(&entry->bank, std::memory_order_release);
    return entry->bank;
  }
  template <class Visit>
  void each(Visit&& visit) const {
    for (Entry* entry = first_.load(std::memory_order_acquire); entry != nullptr; entry = entry->next)
      visit(entry->bank);
  }

 private:
  struct Entry {
    Bank bank;
    Entry* next = nullptr;
  };
  static constexpr uint32_t kSlots = 1u << 12;  ///< slots that a number of 24 bits can name

  /// A number from a packet or from another process may have more bits.
  std::atomic<Bank*>& place_of(uint32_t number) { return by_slot_[shm::slot_of(number) & (kSlots - 1)]; }
  const std::atomic<Bank*>& place_of(uint32_t number) const { return by_slot_[shm::slot_of(number) & (kSlots - 1)]; }

  std::array<std::atomic<Bank*>, kSlots> by_slot_{};  ///< not behind a pointer: each completion reads it
  std::atomic<Entry*> first_{nullptr};
  std::mutex mutex_;  ///< held in make()
};

}  // namespace nupa::core
