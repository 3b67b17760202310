// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "core/index_pool.h"
#include "core/seam/slot_table.h"

namespace nupa::core {

class Qp;

/// The queue pairs of this process, by index and by number, and their free indices. Each slot of the process has 4,096
/// numbers. The low 12 bits of an index are the place in a slot; the bits above are the bank, which counts the
/// process's slots (docs/design/many-queue-pairs.md). A queue pair takes an index, enters with it, leaves, and gives
/// the index back. Any thread.
class QpTable {
 public:
  /// `mutex`: see ObjectTables::mutex().
  explicit QpTable(std::mutex& mutex) : mutex_(mutex) {}

  /// Allocates the memory that add_slot() needs. Throws std::bad_alloc.
  void prepare(uint32_t slot) { banks_.make(shm::number_of(slot, 0)); }
  /// Adds the indices of a slot that the process now has; prepare() was called for it. At most kMaxBanks times; one
  /// thread at a time.
  void add_slot(uint32_t slot) {
    const uint32_t bank = slot_count();
    slots_[bank].store(slot, std::memory_order_release);
    slot_count_.store(bank + 1, std::memory_order_release);
    indices_.extend((bank + 1) * shm::kSlotQp);
  }
  uint32_t slot_count() const { return slot_count_.load(std::memory_order_acquire); }

  /// The free indices of all slots.
  IndexPool& indices() { return indices_; }
  uint32_t number_of(uint32_t index) const {
    return shm::number_of(slots_[shm::bank_of(index)].load(std::memory_order_acquire), shm::index_of(index));
  }

  void enter(Qp& qp, uint32_t index) {
    std::lock_guard lock(mutex_);
    Bank& bank = *banks_.of(number_of(index));
    const uint32_t place = shm::index_of(index);
    bank.objects[place].store(&qp, std::memory_order_release);
    bank.high_water.store(std::max(bank.high_water.load(), place + 1));
    count_.fetch_add(1);
  }
  /// The service thread does not use the queue pair after this returns.
  void leave(uint32_t index) {
    std::lock_guard lock(mutex_);
    banks_.of(number_of(index))->objects[shm::index_of(index)].store(nullptr);
    count_.fetch_sub(1);
  }
  /// The number of queue pairs that have entered.
  uint32_t count() const { return count_.load(); }

  /// Null: this process has no queue pair of that number. Two loads. The caller ensures that the queue pair is not
  /// destroyed while it is used.
  Qp* find(uint32_t number) const {
    const Bank* const bank = banks_.of(number);
    return bank == nullptr ? nullptr : bank->objects[shm::index_of(number)].load(std::memory_order_acquire);
  }
  /// Finds a queue pair by index, which another process may have written.
  Qp* at(uint32_t index) const { return index < shm::kMaxQp ? find(number_of(index)) : nullptr; }
  /// Calls `visit(qp)` for each queue pair. The caller holds ObjectTables::mutex().
  template <class Visit>
  void each(Visit&& visit) const {
    banks_.each([&](const Bank& bank) {
      const uint32_t used = bank.high_water.load();
      for (uint32_t i = 0; i < used; ++i)
        if (Qp* const qp = bank.objects[i].load()) visit(*qp);
    });
  }

 private:
  /// The queue pairs of one slot.
  struct Bank {
    std::array<std::atomic<Qp*>, shm::kSlotQp> objects{};
    std::atomic<uint32_t> high_water{0};  ///< this place and all above it were never used
  };

  std::mutex& mutex_;
  SlotTable<Bank> banks_;
  std::array<std::atomic<uint32_t>, shm::kMaxBanks> slots_{};  ///< by bank; 0: the process has no such slot
  std::atomic<uint32_t> slot_count_{0};
  std::atomic<uint32_t> count_{0};
  IndexPool indices_{0, 0};
};

}  // namespace nupa::core
