// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/ccl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cli/ccl/operations.h"

namespace CLI {
class App;
}

namespace nupa::cli::collectives {

struct BenchOptions {
  uint32_t ranks = 0;  ///< 0: the number of ranks of the job
  std::vector<Operation> operations{Operation::kAllReduce};
  nupa_ccl_type type = NUPA_CCL_FLOAT32;
  nupa_ccl_builtin_op op = NUPA_CCL_SUM;
  uint64_t min_bytes = 4;
  uint64_t max_bytes = 256 << 20;
  uint64_t factor = 4;  ///< from one size to the next
  bool in_place = false;
  bool allocated = false;
  uint32_t root = 0;
  uint64_t iterations = 0;  ///< for each size; 0: enough to take `min_seconds`
  double min_seconds = 0.2;
  uint64_t warmup = 1;
  bool check = true;
  std::string json;  ///< file name; empty: none
};

struct PlanOptions {
  uint32_t ranks = 0;
  std::vector<Operation> operations;  ///< empty: all
  nupa_ccl_type type = NUPA_CCL_FLOAT32;
  uint64_t max_bytes = uint64_t{1} << 30;
  bool json = false;
};

struct TraceOptions {
  std::vector<std::string> files;
  std::string output;  ///< empty: standard output
};

void add_options(CLI::App& bench, BenchOptions* options);
void add_options(CLI::App& plan, PlanOptions* options);
void add_options(CLI::App& trace, TraceOptions* options);

/// Returns why valid options contradict each other, or an empty text. `ranks` 0: the number is not known yet.
std::string contradiction(const BenchOptions& options, uint32_t ranks);

}  // namespace nupa::cli::collectives
