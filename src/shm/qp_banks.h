// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <atomic>
#include <mutex>
#include <optional>

#include "shm/segment.h"

namespace nupa::shm {

/// The tables of one slot of a process as plain pointers. False as a boolean: the bank does not exist.
struct QpBank {
  QpShared* qp = nullptr;
  StatisticsShared* statistics = nullptr;
  std::atomic<uint64_t>* attention = nullptr;
  std::atomic<uint32_t>* high_water = nullptr;

  explicit operator bool() const { return qp != nullptr; }
  /// Queue pairs at and above this index were never used. The tables may belong to another process, which may write any
  /// value.
  uint32_t count() const;
};

/// The queue pairs of a process, this one or a peer, by index and by number. A bank is mapped at its first use and
/// stays mapped, with the slot that it had then, whatever the process writes later. Any thread.
///
/// Memory order: the process stores a bank's offset before its slot (BankPlace), and learn() loads the slot first, all
/// sequentially consistent. In this process, learn() releases `further_` and `count_`, and at() and index_of() acquire
/// them.
class QpBanks {
 public:
  /// `slot`: the first bank's slot. `file` must outlive this object or the next open(). Null: there is only the first
  /// bank.
  void open(MappedFile* file, const Tables& tables, uint32_t slot);

  /// Returns a bank. Bank 0 always exists. Empty: the process has no such bank, or it cannot be mapped (no address
  /// space, or the process exited before its first use).
  QpBank at(uint32_t bank);
  /// Null: no such bank, as for at(). `index` is below kMaxQp.
  QpShared* qp(uint32_t index);
  StatisticsShared* statistics(uint32_t index);
  /// Returns the index of the queue pair with this number and maps its bank. Empty: the process does not have the
  /// number's slot, or the bank cannot be mapped.
  std::optional<uint32_t> index_of(uint32_t number);
  bool has_slot(uint32_t slot);
  /// Calls `visit(bank, its number)` for each bank. False: a bank of the process cannot be mapped.
  template <class Visit>
  bool each(Visit&& visit) {
    const bool all = learn();
    each_known(visit);
    return all;
  }

  /// The same for the banks that are mapped already. Takes no lock.
  template <class Visit>
  void each_known(Visit&& visit) {
    for (uint32_t bank = 0; bank < count_.load(std::memory_order_acquire); ++bank) visit(at(bank), bank);
  }

 private:
  std::optional<uint32_t> bank_with(uint32_t slot) const;
  /// Maps the banks that the process has added. False: one of them cannot be mapped.
  bool learn();

  MappedFile* file_ = nullptr;
  Tables tables_;
  std::mutex mutex_;  ///< held by learn()
  std::array<std::atomic<uint32_t>, kMaxBanks> slots_{};
  std::array<std::atomic<QpBankShared*>, kMaxBanks> further_{};  ///< the first entry is not used
  std::atomic<uint32_t> count_{0};
};

/// True if this header lists the slot as one of its process.
bool claims_slot(const SegmentHeader& header, uint32_t slot);

}  // namespace nupa::shm
