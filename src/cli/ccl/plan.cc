// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/ccl/bench.h"
#include "cli/ccl/report.h"
#include "json/json.h"

namespace nupa::cli::collectives {
namespace {

/// Consecutive sizes with the same algorithm.
struct Range {
  size_t first;  ///< in bytes, as `nupa ccl bench` counts them
  size_t last;
  std::string algorithm;  ///< "slots: why"
};

/// Asks the library for the algorithms of sizes, until all sizes where it changes are found.
class Asking {
 public:
  Asking(const Rank& rank, const PlanOptions& options, Operation operation)
      : rank_(rank), shape_{operation, options.type, NUPA_CCL_SUM, 0, false, 1}, most_bytes_(options.max_bytes) {}

  /// Returns 0 or an errno value.
  int run(std::vector<Range>* ranges) {
    const bool has_sizes = shape_.operation != Operation::kBarrier;
    const size_t unit = shape_.bytes(rank_.ranks());
    const size_t most = has_sizes ? std::max<size_t>(most_bytes_ / unit, 1) : 0;
    size_t first = has_sizes ? 1 : 0;
    while (error_ == 0) {
      const std::string algorithm = ask(first);
      const size_t last = last_like(algorithm, first, most);
      ranges->push_back({first * unit, last * unit, algorithm});
      if (last == most) break;
      first = last + 1;
    }
    return error_;
  }

 private:
  std::string ask(size_t count) {
    char text[kLongestPlan] = "";
    const size_t bytes = count * shape_.element_bytes();
    if (error_ == 0) error_ = nupa_ccl_plan(rank_.comm(), traits_of(shape_.operation).name, bytes, text, sizeof text);
    return text;
  }

  /// Returns the last count from `first` to `most` with this algorithm. Between a count and its double the algorithm
  /// changes once.
  size_t last_like(const std::string& algorithm, size_t first, size_t most) {
    size_t same = first;
    while (same < most) {
      size_t other = std::min(2 * same, most);
      if (ask(other) == algorithm) {
        same = other;
        continue;
      }
      while (other - same > 1) {
        const size_t middle = same + (other - same) / 2;
        (ask(middle) == algorithm ? same : other) = middle;
      }
      break;
    }
    return same;
  }

  const Rank& rank_;
  Shape shape_;
  size_t most_bytes_;
  int error_ = 0;
};

std::string reason(const std::string& algorithm) {
  const size_t colon = algorithm.find(": ");
  return colon == std::string::npos ? "" : algorithm.substr(colon + 2);
}

std::string line_of(const Range& range, bool is_last) {
  std::string sizes = "any";
  if (range.last > 0 && is_last) sizes = "from " + size_text(range.first);
  if (range.last > 0 && !is_last) sizes = size_text(range.first) + " to " + size_text(range.last);
  return fmt::format("  {:<24} {:<14} {}\n", sizes, algorithm_name(range.algorithm), reason(range.algorithm));
}

void add(const std::vector<Range>& ranges, Operation operation, nlohmann::json* rows) {
  for (const Range& range : ranges)
    rows->push_back({{"operation", traits_of(operation).name},
                     {"min_bytes", range.first},
                     {"max_bytes", range.last},
                     {"algorithm", algorithm_name(range.algorithm)},
                     {"why", reason(range.algorithm)}});
}

}  // namespace

int plan(const PlanOptions& options) {
  const auto rank = Rank::join(options.ranks);
  if (rank == nullptr) return 1;
  std::string text = fmt::format("{} ranks, {}\n", rank->ranks(), traits_of(options.type).name);
  nlohmann::json rows = nlohmann::json::array();
  const auto all = all_operations();
  const std::vector<Operation> asked =
      options.operations.empty() ? std::vector(all.begin(), all.end()) : options.operations;
  for (const Operation operation : asked) {
    std::vector<Range> ranges;
    if (Asking(*rank, options, operation).run(&ranges) != 0) {
      complain(std::string("plan of ") + traits_of(operation).name);
      return 1;
    }
    text += fmt::format("{}\n", traits_of(operation).name);
    for (const Range& range : ranges) text += line_of(range, &range == &ranges.back());
    add(ranges, operation, &rows);
  }
  if (rank->is_first()) fmt::print("{}", options.json ? json_text(rows, 2) + "\n" : text);
  return 0;
}

}  // namespace nupa::cli::collectives
