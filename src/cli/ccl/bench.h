// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "cli/ccl/options.h"

namespace nupa::cli::collectives {

constexpr size_t kLongestPlan = 256;  ///< of the text of a plan

/// `nupa ccl bench` and `nupa ccl plan` on one rank of a job. Each returns the exit status.
int bench(const BenchOptions& options);
int plan(const PlanOptions& options);
/// Merges the traces of ranks.
int trace(const TraceOptions& options);

}  // namespace nupa::cli::collectives
