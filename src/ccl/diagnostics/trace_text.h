#pragma once
#include <string>

#include "ccl/diagnostics/trace_records.h"

namespace nupa::ccl {

/// What records are in the Trace Event Format. Times are CLOCK_MONOTONIC. `rank`: what the process is called.

/// Who this process is and what its clocks say: `nupa_clock` has CLOCK_MONOTONIC and CLOCK_REALTIME of one moment (ns)
/// and the boot's id, by which files of several hosts are put together.
std::string trace_head(uint32_t rank);
void trace_text(const TraceRecord& record, uint32_t rank, std::string* text);
/// So many records had no room.
void trace_text_of_lost(uint64_t records, int64_t at_ns, uint32_t rank, std::string* text);

}  // namespace nupa::ccl
