// SPDX-License-Identifier: Apache-2.0
/// `nupa ccl`. It starts the ranks of a job itself; each rank runs the same command.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <climits>
#include <memory>
#include <unistd.h>

#include "ccl/bootstrap/launcher.h"
#include "cli/ccl/bench.h"
#include "cli/commands.h"

namespace nupa::cli {
namespace {

using collectives::BenchOptions;
using collectives::PlanOptions;
using collectives::TraceOptions;

bool is_rank() { return ccl::find_launcher() != ccl::Launcher::kNone; }

int start_ranks(uint32_t ranks, std::vector<std::string> command) {
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self);
  if (length <= 0) {
    fmt::print(stderr, "nupa: /proc is not mounted (mount -t proc proc /proc)\n");
    return 1;
  }
  command.front().assign(self, static_cast<size_t>(length));
  LaunchOptions launched;
  launched.ranks = ranks;
  launched.direct = true;
  launched.run.command = std::move(command);
  return launch(launched);
}

struct Commands {
  CLI::App* bench = nullptr;
  CLI::App* plan = nullptr;
  CLI::App* trace = nullptr;
  BenchOptions bench_options;
  PlanOptions plan_options;
  TraceOptions trace_options;

  int run(const std::vector<std::string>& command) const {
    if (*trace) return collectives::trace(trace_options);
    const uint32_t ranks = *bench ? bench_options.ranks : plan_options.ranks;
    std::string why = *bench ? contradiction(bench_options, ranks) : "";
    if (ranks == 0 && !is_rank())
      why = "ccl: the number of ranks is missing (use --ranks N, or a launcher: `nupa launch`, mpirun, srun)";
    if (!why.empty()) {
      fmt::print(stderr, "nupa: {}\n", why);
      return 2;
    }
    if (ranks != 0 && !is_rank()) return start_ranks(ranks, command);
    return *bench ? collectives::bench(bench_options) : collectives::plan(plan_options);
  }
};

}  // namespace

Subcommand add_ccl(CLI::App& app, std::vector<std::string> command) {
  auto commands = std::make_shared<Commands>();
  CLI::App* const ccl =
      app.add_subcommand("ccl", "Collectives: measure them, show their algorithms, merge traces of ranks");
  ccl->require_subcommand(1);
  commands->bench = ccl->add_subcommand("bench", "Measure collectives: nupa ccl bench -n 4 --operation all_reduce");
  commands->plan = ccl->add_subcommand("plan", "Show the algorithm for each size, and the reason: nupa ccl plan -n 4");
  commands->trace =
      ccl->add_subcommand("trace", "Merge traces of ranks into one file: nupa ccl trace FILES... -o all.json");
  add_options(*commands->trace, &commands->trace_options);
  add_options(*commands->bench, &commands->bench_options);
  add_options(*commands->plan, &commands->plan_options);
  return {ccl, [commands, command = std::move(command)] { return commands->run(command); }};
}

}  // namespace nupa::cli
