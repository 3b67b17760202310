#pragma once
#include <atomic>
#include <mutex>

#include "ccl/diagnostics/event.h"
#include "ccl/diagnostics/trace_file.h"
#include "ccl/diagnostics/trace_records.h"

namespace nupa::ccl {

/// What this process tells of its operations, in a file that chrome://tracing and Perfetto load. Records are kept in
/// memory, up to a limit, and written by a thread of their own. Any thread.
class Trace {
 public:
  /// By NUPA_CCL_TRACE, for the process whose first communicator this is; once. `rank`: its rank there. What goes wrong
  /// is said on standard error, and there is no trace. A child that is forked later has none.
  static void open(uint32_t rank);
  /// Null: there is none.
  static Trace* get() { return made_.load(std::memory_order_acquire); }
  /// In a forked child: the records and the file are its parent's.
  static void abandon() { made_.store(nullptr, std::memory_order_relaxed); }

  /// A communicator comes. Returns its number in this process, from 1 on; also where there is no trace.
  static uint32_t add_communicator(uint32_t rank, uint32_t ranks);

  void add(const Event& event);
  /// A part of an operation.
  void add_part(TraceRecord::Kind kind, uint32_t communicator, uint32_t rank, int64_t begin_ns, int64_t end_ns);
  /// Until all that was added is in the file.
  void flush();

 private:
  /// 4096 of them are enough for the thread to write; above kMost (some 20 MiB) they are counted only.
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
