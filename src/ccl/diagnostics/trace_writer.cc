// SPDX-License-Identifier: Apache-2.0
#include "ccl/diagnostics/trace_writer.h"

#include <string>

#include "ccl/diagnostics/trace_text.h"
#include "progress/lifecycle.h"

namespace nupa::ccl {
namespace {

/// Text is written in blocks of about this size.
constexpr size_t kPieceBytes = 1 << 20;

}  // namespace

void write_records(const TraceRecords::Taken& taken, uint32_t rank, TraceFile* file) {
  std::string text;
  for (const TraceRecord& record : taken.records) {
    trace_text(record, rank, &text);
    if (text.size() < kPieceBytes) continue;
    file->write(text);
    progress::put_off_exit(progress::Deadline::in_ns(progress::kActionNs));  // the process may be exiting
    text.clear();
  }
  if (taken.lost > 0) trace_text_of_lost(taken.lost, taken.records.back().event.end_ns, rank, &text);
  file->write(text);
}

}  // namespace nupa::ccl
