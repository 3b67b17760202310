// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "ccl/diagnostics/trace_records.h"

namespace nupa::ccl {

/// These functions convert records to the Trace Event Format. Times are CLOCK_MONOTONIC. `rank`: the name of the
/// process.

/// Describes this process and its clocks: `nupa_clock` has CLOCK_MONOTONIC and CLOCK_REALTIME of one moment (ns) and
/// the boot id, with which files of several hosts can be merged.
std::string trace_head(uint32_t rank);
void trace_text(const TraceRecord& record, uint32_t rank, std::string* text);
/// Reports the number of records that found no room.
void trace_text_of_lost(uint64_t records, int64_t at_ns, uint32_t rank, std::string* text);

}  // namespace nupa::ccl
