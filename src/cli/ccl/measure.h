// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "cli/ccl/call.h"

namespace nupa::cli::collectives {

struct MeasureOptions {
  uint64_t iterations = 0;  ///< 0: enough to take `min_seconds`
  double min_seconds = 0;
  uint64_t warmup = 0;
};

/// The times of one operation on its slowest rank, in batches.
struct Timing {
  uint64_t batches = 0;
  uint64_t iterations = 0;  ///< in a batch
  double median_us = 0;
  double minimum_us = 0;
};

/// All ranks call it and get the same result. Returns 0 or an errno value.
int measure(const Call& call, const Rank& rank, const MeasureOptions& options, Timing* timing);

}  // namespace nupa::cli::collectives
