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

struct RunOptions {
  std::string transport;  ///< empty: what the environment says
  bool sockets = false;   ///< the program's TCP connections become rsockets where the peer has them too
  bool verbose = false;
  std::vector<std::string> command;
};
/// Replaces this process by the program. Returns only if that fails: 127 not found, 126 not executable.
int run(const RunOptions& options);

struct LaunchOptions {
  RunOptions run;
  uint32_t ranks = 1;
  bool label = true;         ///< each line begins with the rank that says it
  bool direct = false;       ///< what ranks say goes to where this process's output does, without a label
  double grace_seconds = 5;  ///< between the signal that asks ranks to end and the one that ends them
};
/// Starts the program so many times, with NUPA_RANK, NUPA_WORLD_SIZE, NUPA_LOCAL_RANK, NUPA_LOCAL_SIZE and
/// NUPA_CCL_ROOT. Returns the status of the first rank that fails, which ends the others; 128 and a signal's number if
/// one ended it or the job.
int launch(const LaunchOptions& options);

int devices(bool json);
/// `watch_seconds` 0: once.
int stat(bool json, double watch_seconds);
int clean(bool dry_run);
/// 1 if there is a problem.
int doctor(bool json);

/// A command with its own options, and what it does; returns the exit status.
struct Subcommand {
  CLI::App* app;
  std::function<int()> run;
};
/// `nupa ccl`. `command`: how this process was called.
Subcommand add_ccl(CLI::App& app, std::vector<std::string> command);
/// `nupa net`.
Subcommand add_net(CLI::App& app);

/// The folder of the drop-in libraries, found from where this program lies; empty if there is none.
std::string dropin_folder();

}  // namespace nupa::cli
