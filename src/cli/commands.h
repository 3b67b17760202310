// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The subcommands of `nupa`. Each returns the exit status.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace nupa::cli {

constexpr uint32_t kMostRanks = 4096;          ///< most ranks that `nupa launch` starts
constexpr double kShortestWatch = 0.01;        ///< seconds between two tables of `nupa stat --watch`
constexpr double kLongestSeconds = 24 * 3600;  ///< a longer time on the command line is a typing error

struct RunOptions {
  std::string transport;  ///< empty: that of the environment
  bool sockets = false;   ///< the program's TCP connections become rsockets where the peer has them too
  bool explain = false;
  bool verbose = false;
  bool mount = false;  ///< the files of an adapter are mounted, for static programs and those of Go
  std::vector<std::string> command;
};
/// Replaces this process by the program. Returns only if that fails: 127 not found, 126 not executable.
int run(const RunOptions& options);

struct LaunchOptions {
  RunOptions run;
  uint32_t ranks = 1;
  bool label = true;         ///< each line begins with the rank that prints it
  bool direct = false;       ///< ranks write to this process's own output, without a label
  double grace_seconds = 5;  ///< between SIGTERM and SIGKILL for the remaining ranks
};
/// The variables that each rank gets.
constexpr const char* kSetByLaunch[] = {"NUPA_RANK", "NUPA_WORLD_SIZE", "NUPA_LOCAL_RANK", "NUPA_LOCAL_SIZE",
                                        "NUPA_CCL_ROOT"};
/// Starts the program `ranks` times, with NUPA_RANK, NUPA_WORLD_SIZE, NUPA_LOCAL_RANK, NUPA_LOCAL_SIZE and
/// NUPA_CCL_ROOT. The first rank that fails ends the others, and its status is returned. If a signal ended that rank or
/// the job, returns 128 plus the signal's number.
int launch(const LaunchOptions& options);

int devices(bool json);
struct StatOptions {
  bool json = false;
  bool prometheus = false;
  std::string output;        ///< a file in place of standard output, with `prometheus`
  double watch_seconds = 0;  ///< 0: once
};
int stat(const StatOptions& options);
struct TopOptions {
  double interval = 1;  ///< seconds between two looks
  uint32_t count = 0;   ///< tables; 0: until the user ends it
  std::string by = "process";
  std::string sort = "sent";
  bool json = false;
};
/// Shows rates until the user ends it. In a terminal it takes keys.
int top(const TopOptions& options);
/// Waits for the lock of the runtime directory. Returns 1 if another process keeps it.
int clean(bool dry_run, bool json);
/// Returns 1 if there is a problem.
struct DoctorOptions {
  pid_t pid = 0;                     ///< 0: this machine, or the program
  std::vector<std::string> program;  ///< empty: this machine
  bool json = false;
};
int doctor(const DoctorOptions& options);

/// A command with its own options, and the function that runs it and returns the exit status.
struct Subcommand {
  CLI::App* app;
  std::function<int()> run;
};
/// `nupa ccl`. `command`: the command line of this process.
Subcommand add_ccl(CLI::App& app, std::vector<std::string> command);
/// `nupa capture`.
Subcommand add_capture(CLI::App& app);
/// `nupa net`.
Subcommand add_net(CLI::App& app);
/// `nupa gateway`.
Subcommand add_gateway(CLI::App& app);
/// `nupa pool`.
Subcommand add_pool(CLI::App& app);

/// Returns the folder of the drop-in libraries, relative to this program; empty if there is none.
std::string dropin_folder();
/// Names the drop-in libraries to the dynamic loader of programs that this process starts.
void enter_run_environment();

}  // namespace nupa::cli
