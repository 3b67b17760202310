// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <atomic>
#include <mutex>

#include "ccl/diagnostics/event.h"
#include "ccl/diagnostics/trace_file.h"
#include "ccl/diagnostics/trace_records.h"

namespace nupa::ccl {

/// The trace of this process's operations: a file that chrome://tracing and Perfetto load. Records are kept in memory,
/// up to a limit, until a separate thread writes them. Thread-safe.
class Trace {
 public:
  /// Opens the file of NUPA_CCL_TRACE with the first communicator of the process; later calls do nothing. `rank`: this
  /// process's rank in that communicator. EINVAL: the file cannot be created; later calls return the same. A child
  /// that is forked later has no trace.
  static Result<void> open(uint32_t rank);
  /// Returns null if there is no trace.
  static Trace* get() { return made_.load(std::memory_order_acquire); }
  /// Called in a forked child: the records and the file belong to its parent.
  static void abandon() { made_.store(nullptr, std::memory_order_relaxed); }

  /// Records a new communicator. Returns its number in this process, counted from 1, also if there is no trace.
  static uint32_t add_communicator(uint32_t rank, uint32_t ranks);

  void add(const Event& event);
  /// Records a part of an operation.
  void add_part(TraceRecord::Kind kind, uint32_t communicator, uint32_t rank, int64_t begin_ns, int64_t end_ns);
  /// Writes all records that were added to the file.
  void flush();

 private:
  /// kMany records wake the thread that writes. Records above kMost (some 20 MiB) are only counted.
  static constexpr size_t kMany = 4096;
  static constexpr size_t kMost = 131072;

  Trace(TraceFile file, uint32_t rank) : file_(std::move(file)), rank_(rank), records_(kMany, kMost) {}
  int start();
  void serve();

  static std::atomic<Trace*> made_;

  std::mutex file_mutex_;
  TraceFile file_;
  const uint32_t rank_;
  TraceRecords records_;
};

}  // namespace nupa::ccl
