// SPDX-License-Identifier: Apache-2.0
#include "cli/ccl/bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/ccl/check.h"
#include "cli/ccl/progress.h"
#include "cli/ccl/report.h"
#include "json/json.h"

namespace nupa::cli::collectives {
namespace {

/// Returns false and prints an error if the file cannot be written. The file's content stays.
bool is_writable(const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return true;
  fmt::print(stderr, "nupa: ccl: cannot write {}: {}\n", path, std::strerror(errno));
  return false;
}

bool write(const std::string& path, const std::string& text) {
  if (path.empty()) return true;
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) fmt::print(stderr, "nupa: ccl: cannot write {}: {}\n", path, std::strerror(errno));
  return static_cast<bool>(file);
}

void show(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

class Bench {
 public:
  Bench(const BenchOptions& options, const Rank& rank)
      : options_(options), rank_(rank), about_(About::here(rank.ranks())) {}

  int run() {
    std::vector<Shape> shapes;
    for (const Operation operation : options_.operations) add_shapes(operation, &shapes);
    size_t most = 1;
    for (const Shape& shape : shapes)
      most = std::max(most, shape.block_bytes() * (traits_of(shape.operation).is_total ? rank_.ranks() : 1));
    buffers_ = Buffers::of(most, options_.allocated);
    if (buffers_ == nullptr) {
      fmt::print(stderr, "nupa: ccl: rank {}: cannot allocate two arrays of {}\n", rank_.rank(), size_text(most));
      return 1;
    }
    if (rank_.is_first()) show(table_head(options_, about_));
    const Progress progress(shapes.size(), rank_.is_first());
    for (size_t done = 0; done < shapes.size(); ++done) {
      const Shape& shape = shapes[done];
      const std::string name = name_of(shape);
      progress.show(done, name);
      Result result{};
      if (run_one(shape, &result) != 0) {
        progress.clear();
        complain(name);
        return 1;
      }
      progress.clear();
      report(result);
    }
    return finish();
  }

 private:
  void add_shapes(Operation operation, std::vector<Shape>* shapes) const {
    Shape shape{operation, options_.type, options_.op, options_.root, options_.in_place, 0};
    if (operation == Operation::kBarrier) return shapes->push_back(shape);
    const size_t unit = shape.element_bytes() * (traits_of(operation).is_total ? rank_.ranks() : 1);
    for (uint64_t bytes = options_.min_bytes; bytes <= options_.max_bytes; bytes *= options_.factor) {
      const size_t count = std::max<size_t>(bytes / unit, 1);
      // Several small sizes may have one element.
      if (count != shape.count) {
        shape.count = count;
        shapes->push_back(shape);
      }
      if (bytes > options_.max_bytes / options_.factor) break;
    }
  }

  std::string name_of(const Shape& shape) const {
    const char* const operation = traits_of(shape.operation).name;
    if (shape.operation == Operation::kBarrier) return operation;
    return fmt::format("{} of {}", operation, size_text(shape.bytes(rank_.ranks())));
  }

  /// Returns 0 or an errno value.
  int run_one(const Shape& shape, Result* result) {
    result->operation = shape.operation;
    result->bytes = shape.bytes(rank_.ranks());
    result->count = shape.count;
    char plan[kLongestPlan];
    int error = nupa_ccl_plan(rank_.comm(), traits_of(shape.operation).name, shape.block_bytes(), plan, sizeof plan);
    if (error != 0) return error;
    result->algorithm = plan;
    const Call call(shape, rank_, *buffers_);
    if (error = check(call, &result->verdict); error != 0) return error;
    return measure(call, rank_, {options_.iterations, options_.min_seconds, options_.warmup}, &result->timing);
  }

  /// Fills the arrays in any case, so that the measurement uses valid numbers.
  int check(const Call& call, Verdict* verdict) {
    const Check check(call, rank_.rank(), rank_.ranks(), checks_++);
    check.fill();
    *verdict = Verdict::kNotChecked;
    if (!options_.check || call.shape().operation == Operation::kBarrier) return 0;
    if (const int error = call.run(); error != 0) return error;
    const std::string wrong = check.verdict();
    if (!wrong.empty()) fmt::print(stderr, "nupa: ccl: rank {}: {}: {}\n", rank_.rank(), name_of(call.shape()), wrong);
    double is_wrong = wrong.empty() ? 0 : 1;
    if (const int error = rank_.maximum(&is_wrong, 1); error != 0) return error;
    *verdict = is_wrong == 0 ? Verdict::kRight : Verdict::kWrong;
    return 0;
  }

  void report(const Result& result) {
    if (result.verdict == Verdict::kWrong) ++wrong_;
    if (!rank_.is_first()) return;
    const bool is_new = results_.empty() || results_.back().operation != result.operation;
    show((is_new ? table_head(result.operation) : "") + table_row(result, about_));
    results_.push_back(result);
  }

  int finish() const {
    if (!rank_.is_first()) return 0;
    bool written = true;
    if (!options_.json.empty())
      written = write(options_.json, json_text(json_of(options_, about_, results_), 2) + "\n");
    if (wrong_ != 0) fmt::print(stderr, "nupa: ccl: {} of {} results are wrong\n", wrong_, results_.size());
    return written && wrong_ == 0 ? 0 : 1;
  }

  const BenchOptions& options_;
  const Rank& rank_;
  const About about_;
  std::unique_ptr<Buffers> buffers_;
  std::vector<Result> results_;
  uint64_t checks_ = 0;
  size_t wrong_ = 0;
};

}  // namespace

int bench(const BenchOptions& options) {
  const auto rank = Rank::join(options.ranks);
  if (rank == nullptr) return 1;
  if (const std::string why = contradiction(options, rank->ranks()); !why.empty()) {
    if (rank->is_first()) fmt::print(stderr, "nupa: ccl: {}\n", why);
    return 2;
  }
  double refused = rank->is_first() && !is_writable(options.json) ? 1 : 0;
  if (rank->maximum(&refused, 1) != 0) {
    complain("cannot start the measurement");
    return 1;
  }
  if (refused != 0) return 1;
  return Bench(options, *rank).run();
}

}  // namespace nupa::cli::collectives
