// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <atomic>
#include <mutex>
#include <optional>

#include "shm/segment.h"

namespace nupa::shm {

/// The tables of one slot of a process as plain pointers. Without queue pairs: there is none.
struct QpBank {
  QpShared* qp = nullptr;
  StatisticsShared* statistics = nullptr;
  std::atomic<uint64_t>* attention = nullptr;
  std::atomic<uint32_t>* high_water = nullptr;

  explicit operator bool() const { return qp != nullptr; }
  /// Queue pairs at and above were never used. The tables may be another process's, which could write anything.
  uint32_t count() const;
};

/// The queue pairs of a process, this one or a peer, by index and by number. A bank is mapped when it is asked for.
/// What was mapped stays, with the slot that it had then, whatever the process writes later. Any thread.
class QpBanks {
 public:
  /// `slot`: of the first bank. `file` outlives this object, or open() is called again; null: there is no other bank.
  void open(MappedFile* file, const Tables& tables, uint32_t slot);

  /// Bank 0 is always there. Empty: the process has none of that number, or it cannot be mapped (no address space, or
  /// the process exited before it was looked at).
  QpBank at(uint32_t bank);
  /// Null: there is none; as at(). `index` is below kMaxQp.
  QpShared* qp(uint32_t index);
  StatisticsShared* statistics(uint32_t index);
  /// The index of the queue pair with this number, whose bank is mapped then. Empty: the process does not have its
  /// slot, or the bank cannot be mapped.
  std::optional<uint32_t> index_of(uint32_t number);
  bool has_slot(uint32_t slot);
  /// Calls `visit(bank, its number)` for each bank. False: the process has one that cannot be mapped.
  template <class Visit>
  bool each(Visit&& visit) {
    const bool all = learn();
    for (uint32_t bank = 0; bank < count_.load(std::memory_order_acquire); ++bank) visit(at(bank), bank);
    return all;
  }

 private:
  std::optional<uint32_t> bank_with(uint32_t slot) const;
  /// Maps the banks that the process shows and this object does not have. False: one of them cannot be mapped.
  bool learn();

  MappedFile* file_ = nullptr;
  Tables tables_;
  std::mutex mutex_;  ///< of learn()
  std::array<std::atomic<uint32_t>, kMaxBanks> slots_{};
  std::array<std::atomic<QpBankShared*>, kMaxBanks> further_{};  ///< the first is not used
  std::atomic<uint32_t> count_{0};
};

/// Whether the process with this header says that the slot is one of its own.
bool claims_slot(const SegmentHeader& header, uint32_t slot);

}  // namespace nupa::shm
