#pragma once
#include <cstdint>

#include "cli/ccl/call.h"

namespace nupa::cli::collectives {

struct MeasureOptions {
  uint64_t iterations = 0;  ///< 0: as many as take `min_seconds`
  double min_seconds = 0;
  uint64_t warmup = 0;
};

/// Of one operation, as its slowest rank has it, by batches.
struct Timing {
  uint64_t batches = 0;
  uint64_t iterations = 0;  ///< of a batch
  double median_us = 0;
  double minimum_us = 0;
};

/// Called by all ranks, who get the same. An errno value.
int measure(const Call& call, const Rank& rank, const MeasureOptions& options, Timing* timing);

}  // namespace nupa::cli::collectives
