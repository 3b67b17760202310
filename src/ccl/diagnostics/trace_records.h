// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "ccl/diagnostics/event.h"
#include "progress/condition.h"

namespace nupa::ccl {

/// One record of a trace, before it is converted to text.
struct TraceRecord {
  enum class Kind : uint8_t { kOperation, kMessage, kWait, kCheck, kCommunicator };
  Kind kind;
  Event event;  ///< kWait, kCheck: only begin, end, communicator, and in `root` the awaited rank
};

/// Records that are not in the file yet, up to a limit; those above it are only counted. Thread-safe.
class TraceRecords {
 public:
  /// `many`: this number of records wakes the writer. `most`: the limit.
  TraceRecords(size_t many, size_t most) : kMany(many), kMost(most) {}

  struct Taken {
    std::vector<TraceRecord> records;
    uint64_t lost = 0;  ///< number of records that found no room; 0 if `records` is empty
  };

  void put(const TraceRecord& record);
  Taken take();
  /// Waits until there are `many` records, `at_most_ns` at most.
  void wait_for_many(int64_t at_most_ns);

 private:
  const size_t kMany;
  const size_t kMost;

  std::mutex mutex_;
  progress::Condition many_;
  std::vector<TraceRecord> records_;
  uint64_t lost_ = 0;
};

}  // namespace nupa::ccl
