// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "ccl/diagnostics/trace_file.h"
#include "ccl/diagnostics/trace_records.h"

namespace nupa::ccl {

/// Appends the records to the file, and a line about those that are lost. `rank`: the name of the process in the trace.
/// At the exit of a process, it may take as long as the file needs.
void write_records(const TraceRecords::Taken& taken, uint32_t rank, TraceFile* file);

}  // namespace nupa::ccl
