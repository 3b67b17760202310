// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The counts of a device's port over all processes of the runtime directory, those that ended included. See
/// docs/design/sysfs.md.

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "host/runtime_dir.h"
#include "shm/qp_banks.h"
#include <nupa/result.h>

namespace nupa::core {

/// Adds the counts of a queue pair of any process.
void add_counts(const shm::QpShared& qp, const shm::StatisticsShared& block, shm::PortSums* sums);

/// This process's part of the counts. The file of the runtime directory has a row for each slot, which the process in
/// the slot writes and the next one goes on with: values never fall. The row is written when others ask, and when the
/// process ends; what a killed process has counted since is lost.
///
/// Any thread. Memory order: the row's values are independent of each other, and each has one writer at a time.
class PortTotals {
 public:
  using Row = std::array<std::array<std::atomic<uint64_t>, 32>, shm::kMaxDevices>;

  PortTotals() = default;
  ~PortTotals();
  PortTotals(const PortTotals&) = delete;
  PortTotals& operator=(const PortTotals&) = delete;

  /// Finds the row of `slot`, which belongs to this process. Until then nothing is published, but all is counted. Does
  /// nothing after the first call. EFBIG, ENOSPC and others: the counts of this process reach no other one.
  Result<void> open(const std::string& directory, uint32_t slot);
  void count(uint32_t device, shm::PortCount count) {
    of_device_[device % shm::kMaxDevices][static_cast<size_t>(count)].fetch_add(1, std::memory_order_relaxed);
  }
  /// Keeps the counts of a queue pair that is being destroyed and is not in use any more, and sets those of its block
  /// back.
  void retire(const shm::QpShared& qp, shm::StatisticsShared& block);
  /// Writes the row. `at_exit`: takes no lock and maps nothing.
  void publish(shm::QpBanks& queue_pairs, bool at_exit);

 private:
  std::mutex mutex_;  ///< held by open()
  std::array<std::array<std::atomic<uint64_t>, shm::kPortCounts>, shm::kMaxDevices> of_device_{};
  std::array<shm::PortSums, shm::kMaxDevices> before_{};  ///< the row as it was at open()
  std::atomic<Row*> row_{nullptr};
  bool is_open_ = false;
};
static_assert(sizeof(PortTotals::Row) == shm::kPage && shm::kPortCounts <= 32);

/// The counts of each device, by index. Asks the processes of the directory to write theirs first; one that does not
/// answer within 100 ms is left out, and its last values count. Empty: no process has counted anything.
std::vector<shm::PortSums> read_port_totals(host::RuntimeDir& directory);

}  // namespace nupa::core
