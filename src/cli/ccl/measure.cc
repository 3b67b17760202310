// SPDX-License-Identifier: Apache-2.0
#include "cli/ccl/measure.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/clock.h"

namespace nupa::cli::collectives {
namespace {

constexpr double kNsPerSecond = 1e9;
constexpr double kNsPerUs = 1e3;
/// A median of fewer batches is not reliable.
constexpr uint64_t kLeastBatches = 3;
constexpr uint64_t kUsualBatches = 10;
/// A batch that takes at least this part of the wanted time is long enough to compute the number of iterations.
constexpr double kTelling = 0.3;
/// The largest growth from one try to the next, because the first iterations are slow.
constexpr double kMostGrowth = 16;

struct Plan {
  uint64_t batches;
  uint64_t iterations;  ///< of each batch
};

class Measuring {
 public:
  Measuring(const Call& call, const Rank& rank, const MeasureOptions& options)
      : call_(call), rank_(rank), options_(options) {}

  int run(Timing* timing) {
    if (const int error = repeat(options_.warmup); error != 0) return error;
    Plan plan{};
    if (const int error = make_plan(&plan); error != 0) return error;
    std::vector<double> times(plan.batches);
    for (double& ns : times)
      if (const int error = time_batch(plan.iterations, &ns); error != 0) return error;
    if (const int error = rank_.maximum(times.data(), times.size()); error != 0) return error;
    std::sort(times.begin(), times.end());
    const size_t middle = times.size() / 2;
    const double median = times.size() % 2 == 1 ? times[middle] : (times[middle - 1] + times[middle]) / 2;
    const double unit = kNsPerUs * static_cast<double>(plan.iterations);
    *timing = {plan.batches, plan.iterations, median / unit, times.front() / unit};
    return 0;
  }

 private:
  int repeat(uint64_t iterations) const {
    for (uint64_t i = 0; i < iterations; ++i)
      if (const int error = call_.run(); error != 0) return error;
    return 0;
  }

  /// Measures this rank's time after a barrier of all ranks.
  int time_batch(uint64_t iterations, double* ns) const {
    if (const int error = nupa_ccl_barrier(rank_.comm(), nullptr); error != 0) return error;
    const int64_t began = base::now_ns();
    const int error = repeat(iterations);
    *ns = static_cast<double>(base::now_ns() - began);
    return error;
  }

  /// All ranks make the same plan, from the times of the slowest rank.
  int make_plan(Plan* plan) const {
    if (options_.iterations != 0) {
      const uint64_t batches = std::min(kUsualBatches, options_.iterations);
      *plan = {batches, (options_.iterations + batches - 1) / batches};
      return 0;
    }
    const double budget_ns = options_.min_seconds * kNsPerSecond;
    const double batch_ns = budget_ns / kUsualBatches;
    uint64_t iterations = 1;
    double ns = 0;
    while (true) {
      int error = time_batch(iterations, &ns);
      if (error == 0) error = rank_.maximum(&ns, 1);
      if (error != 0) return error;
      if (ns >= kTelling * batch_ns) break;
      const double growth = std::clamp(batch_ns / std::max(ns, 1.0), 2.0, kMostGrowth);
      iterations = static_cast<uint64_t>(static_cast<double>(iterations) * growth);
    }
    const double each_ns = ns / static_cast<double>(iterations);
    plan->iterations = static_cast<uint64_t>(std::max(batch_ns / each_ns, 1.0));
    const double batches = budget_ns / (each_ns * static_cast<double>(plan->iterations));
    plan->batches = std::clamp(static_cast<uint64_t>(batches), kLeastBatches, kUsualBatches);
    return 0;
  }

  const Call& call_;
  const Rank& rank_;
  const MeasureOptions& options_;
};

}  // namespace

int measure(const Call& call, const Rank& rank, const MeasureOptions& options, Timing* timing) {
  return Measuring(call, rank, options).run(timing);
}

}  // namespace nupa::cli::collectives
