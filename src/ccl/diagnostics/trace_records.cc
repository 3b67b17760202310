#include "ccl/diagnostics/trace_records.h"

#include <string>

#include "ccl/diagnostics/trace_file.h"
#include "ccl/diagnostics/trace_text.h"
#include "progress/lifecycle.h"

namespace nupa::ccl {
namespace {

/// Text is written in pieces of about this size.
constexpr size_t kPieceBytes = 1 << 20;

}  // namespace

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

void write_records(const TraceRecords::Taken& taken, uint32_t rank, TraceFile* file) {
  std::string text;
  for (const TraceRecord& record : taken.records) {
    trace_text(record, rank, &text);
    if (text.size() < kPieceBytes) continue;
    file->write(text);
    progress::put_off_exit(progress::Deadline::in_ns(progress::kActionNs));  // if it is the process's last words
    text.clear();
  }
  if (taken.lost > 0) trace_text_of_lost(taken.lost, taken.records.back().event.end_ns, rank, &text);
  file->write(text);
}

}  // namespace nupa::ccl
