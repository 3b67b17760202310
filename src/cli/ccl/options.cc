// SPDX-License-Identifier: Apache-2.0
#include "cli/ccl/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/commands.h"
#include "cli/definitions.h"
#include "cli/ranges.h"

namespace nupa::cli::collectives {
namespace {

// A larger value is a typing error.
constexpr uint64_t kMostBytes = uint64_t{1} << 40;
constexpr uint64_t kMostIterations = 1'000'000'000;
constexpr double kMostSeconds = 3600;

/// Returns the operations of "all" or "reduce,scan", or an empty list if one name is unknown.
std::vector<Operation> operations_of(const std::string& text) {
  if (text == "all") return {all_operations().begin(), all_operations().end()};
  std::vector<Operation> operations;
  for (const std::string& name : CLI::detail::split(text, ',')) {
    const auto operation = operation_named(name);
    if (!operation) return {};
    operations.push_back(*operation);
  }
  return operations;
}

/// `choice`: the accepted names, "a, b, c"; `is_list`: also several of them with commas. `read` returns an optional or
/// a list from a text. If that is empty, the text is an error.
template <class Read, class Take>
void add_named(CLI::App& app, const char* name, const char* help, std::string choice, bool is_list, Read read,
               Take take) {
  app.add_option_function<std::string>(
         name, [take, read](const std::string& text) { take(read(text)); }, help)
      ->check(
          [read, choice](const std::string& text) -> std::string {
            const auto found = read(text);
            const bool is_there = std::begin(found) != std::end(found);
            return is_there ? "" : "'" + text + "' is not accepted (expected " + choice + ")";
          },
          choices_text(choice, is_list));
}

template <class T>
std::vector<T> as_list(std::optional<T> value) {
  return value ? std::vector<T>{*value} : std::vector<T>{};
}

void add_ranks(CLI::App& app, uint32_t* ranks) {
  app.add_option("-n,--ranks", *ranks, "Number of ranks to start here (default: run as a rank of `nupa launch`)")
      ->check(number_between(1u, kMostRanks));
}

void add_operations(CLI::App& app, const char* help, std::vector<Operation>* operations) {
  add_named(app, "--operation", help, operation_names() + ", all", true, operations_of,
            [operations](std::vector<Operation> found) { *operations = std::move(found); });
}

void add_type(CLI::App& app, nupa_ccl_type* type) {
  add_named(
      app, "--type", "Type of the elements (default float32)", type_names(), false,
      [](const std::string& text) { return as_list(type_named(text)); },
      [type](const std::vector<nupa_ccl_type>& found) { *type = found.front(); });
}

void add_size(CLI::App& app, const char* name, const char* help, uint64_t* bytes) {
  app.add_option(name, *bytes, help)->transform(CLI::AsSizeValue(false))->check(CLI::Range(uint64_t{1}, kMostBytes));
}

}  // namespace

void add_options(CLI::App& bench, BenchOptions* options) {
  add_ranks(bench, &options->ranks);
  add_operations(bench, "Operations to measure (default all_reduce)", &options->operations);
  add_type(bench, &options->type);
  add_named(
      bench, "--op", "Operator of reductions (default sum)", op_names(), false,
      [](const std::string& text) { return as_list(op_named(text)); },
      [options](const std::vector<nupa_ccl_builtin_op>& found) { options->op = found.front(); });
  add_size(bench, "--min-bytes", "Smallest size in bytes (default 4)", &options->min_bytes);
  add_size(bench, "--max-bytes", "Largest size in bytes (default 256M)", &options->max_bytes);
  bench.add_option("--factor", options->factor, "Growth factor from one size to the next")
      ->check(number_between(uint64_t{2}, kMostBytes))
      ->capture_default_str();
  bench.add_flag("--in-place", options->in_place, "Use the input buffer for the result");
  bench.add_flag("--allocated", options->allocated, "Use memory of nupa_ccl_alloc(), which other ranks map");
  bench.add_option("--root", options->root, "Root rank, for operations that have one")
      ->check(number_between(0u, kMostRanks - 1))
      ->capture_default_str();
  auto* const iterations =
      bench.add_option("--iterations", options->iterations, "Iterations of each size (default: by --min-time)")
          ->check(number_between(uint64_t{1}, kMostIterations));
  bench.add_option("--min-time", options->min_seconds, "Seconds to measure each size for")
      ->check(number_between(0.0, kMostSeconds, "seconds"))
      ->capture_default_str()
      ->excludes(iterations);
  bench.add_option("--warmup", options->warmup, "Iterations of each size before measuring")
      ->check(number_between(uint64_t{0}, kMostIterations))
      ->capture_default_str();
  bench.add_flag("--check,!--no-check", options->check,
                 "Compare one result of each size with a serial reference (default)");
  bench.add_option("--json", options->json, "Write the results to this file as JSON")->type_name("FILE");
  bench.footer(
      "A time is that of one operation on the slowest rank: the median and the minimum of several batches.\n"
      "Sizes and bus bandwidths are those of nccl-tests. The size of gather, all_gather, scatter, all_to_all and\n"
      "reduce_scatter includes the blocks of all ranks.\n"
      "The exit status is 1 if a result is wrong or an operation fails.");
}

void add_options(CLI::App& plan, PlanOptions* options) {
  add_ranks(plan, &options->ranks);
  add_operations(plan, "Operations to show (default all)", &options->operations);
  add_type(plan, &options->type);
  add_size(plan, "--max-bytes", "Largest size in bytes (default 1G)", &options->max_bytes);
  plan.add_flag("--json", options->json, "Print JSON");
  plan.footer("Sizes are those of `nupa ccl bench`. NUPA_CCL_ALGO=all_reduce=slices,... prefers algorithms by name.");
}

void add_options(CLI::App& trace, TraceOptions* options) {
  trace.add_option("files", options->files, "Traces that ranks wrote with NUPA_CCL_TRACE=FILE")
      ->required()
      ->type_name("FILE");
  trace.add_option("-o,--output", options->output, "Output file (default: standard output)")->type_name("FILE");
  trace.footer(
      "The output is for chrome://tracing and Perfetto. Ranks of one host share a clock. The times of other hosts are\n"
      "shifted by the difference of CLOCK_REALTIME.");
}

std::string contradiction(const BenchOptions& options, uint32_t ranks) {
  if (options.max_bytes < options.min_bytes) return "--max-bytes is less than --min-bytes";
  if (ranks != 0 && options.root >= ranks)
    return "--root " + std::to_string(options.root) + ": the job has only " + std::to_string(ranks) + " ranks";
  const auto asked = [&](auto suits) {
    return std::any_of(options.operations.begin(), options.operations.end(), suits);
  };
  const auto reduces = [](Operation operation) { return traits_of(operation).reduces; };
  if (options.op >= NUPA_CCL_BIT_AND && !is_integer(options.type) && asked(reduces))
    return std::string("--op ") + name_of(options.op) + " needs an integer type (--type)";
  const auto gives_parts = [](Operation operation) {
    return operation == Operation::kScan || operation == Operation::kExscan;
  };
  if (options.op == NUPA_CCL_AVERAGE && asked(gives_parts)) return "--op average is not available for scan and exscan";
  return "";
}

}  // namespace nupa::cli::collectives
