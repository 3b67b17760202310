// SPDX-License-Identifier: Apache-2.0
#include "ccl/diagnostics/trace_records.h"

#include <utility>

namespace nupa::ccl {

void TraceRecords::put(const TraceRecord& record) {
  bool many = false;
  {
    std::lock_guard lock(mutex_);
    if (records_.size() >= kMost) {
      ++lost_;
      return;
    }
    records_.push_back(record);
    many = records_.size() == kMany;
  }
  if (many) many_.notify_one();
}

TraceRecords::Taken TraceRecords::take() {
  Taken taken;
  std::lock_guard lock(mutex_);
  taken.records.swap(records_);
  std::swap(taken.lost, lost_);
  return taken;
}

void TraceRecords::wait_for_many(int64_t at_most_ns) {
  std::unique_lock lock(mutex_);
  many_.wait(
      lock, [&] { return records_.size() >= kMany; }, progress::Deadline::in_ns(at_most_ns));
}

}  // namespace nupa::ccl
