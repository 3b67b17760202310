// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <fmt/core.h>
#include <limits>
#include <sstream>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "cli/commands.h"
#include "cli/traffic.h"
#include "cli/definitions.h"
#include "cli/ranges.h"
#include "cli/settings.h"
#include "core/transport_names.h"
#include "nupa_config.h"

namespace {

/// Returns where the program and its arguments begin: after "--", or at the first word that is not an option of `run`
/// or `launch`. The parser must not get them, because it splits words such as [a,b].
int start_of_command(const std::vector<const CLI::App*>& runners, int argc, char** argv) {
  const auto named = [&](const CLI::App* runner) { return argc > 1 && runner->get_name() == argv[1]; };
  const auto found = std::find_if(runners.begin(), runners.end(), named);
  if (found == runners.end()) return argc;
  const CLI::App& run = **found;
  int at = 2;
  for (; at < argc && argv[at][0] == '-'; ++at) {
    const std::string_view word = argv[at];
    if (word == "--") break;
    const CLI::Option* option = run.get_option_no_throw(std::string(word));
    if (option != nullptr && option->get_items_expected_max() > 0 && at + 1 < argc) ++at;
  }
  return at;
}

/// Returns the innermost command that the command line names.
const CLI::App& named_command(const CLI::App& app) {
  const CLI::App* command = &app;
  for (auto inner = app.get_subcommands(); !inner.empty(); inner = command->get_subcommands()) command = inner.front();
  return *command;
}

/// Prints the wrong word and the help that lists the accepted ones. Returns the exit status.
int report_usage(const CLI::App& app, const std::string& reason) {
  const CLI::App& command = named_command(app);
  std::string words;
  for (const CLI::App* at = &command; at != &app; at = at->get_parent()) words = " " + at->get_name() + words;
  std::string what = reason;
  const std::vector<std::string> unknown = command.remaining();
  if (!command.get_subcommands(nullptr).empty() && !unknown.empty())
    what = fmt::format("'{}' is not {}", unknown.front(), unknown.front().starts_with("-") ? "an option" : "a command");
  fmt::print(stderr, "nupa:{}{} {} (see nupa{} --help)\n", words, words.empty() ? "" : ":", what, words);
  return 2;
}

/// Opens /dev/null for each standard stream that is closed. Otherwise the next descriptor that the program opens would
/// have the number of that stream.
void open_closed_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) [[maybe_unused]]
      const int opened = open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
}

/// Writes the rest of standard output. Returns 0, or the errno of a write that failed.
int flush_output() {
  errno = 0;
  const bool has_failed = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !has_failed) return 0;
  return errno != 0 ? errno : EIO;
}

int run_command(int argc, char** argv) {
  const CLI::Validator is_transport(
      [](const std::string& value) {
        if (nupa::core::parse_transports(value)) return std::string();
        return fmt::format("'{}' is not a transport (expected {})", value, nupa::core::transport_choices());
      },
      nupa::cli::choices_text(nupa::core::transport_words(), true));
  const auto is_one_of = [](const std::vector<std::string>& names) {
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    return CLI::Validator(
        [names, all](const std::string& value) {
          if (std::find(names.begin(), names.end(), value) != names.end()) return std::string();
          return fmt::format("'{}' is not accepted (expected one of {})", value, all);
        },
        nupa::cli::choices_text(all, false));
  };
  CLI::App app{
      "NUPA: RDMA, IP and collectives on any x86-64 Linux machine, without an adapter, a kernel module or root rights"};
  app.set_version_flag("--version", std::string("nupa ") + NUPA_VERSION);
  app.require_subcommand(1);
  app.footer(nupa::cli::help_of_settings());

  nupa::cli::RunOptions run_options;
  CLI::App* run = app.add_subcommand("run", "Run any program on NUPA: nupa run [options] -- PROGRAM ARGS...");
  run->add_option("--transport", run_options.transport, "The transports to use (default $NUPA_TRANSPORT, or auto)")
      ->check(is_transport);
  run->add_flag("--sockets", run_options.sockets,
                "Use RDMA for TCP connections to peers that also run with --sockets (docs/guides/tcp-programs.md)");
  run->add_flag("--verbose", run_options.verbose, "Log what NUPA does (NUPA_LOG=info)");
  run->add_flag("--explain", run_options.explain,
                "Print why verbs and rdma_cm calls of the program fail (NUPA_EXPLAIN=on)");
  run->add_flag("--mount", run_options.mount,
                "Mount the files of an adapter over /sys and /dev, for static programs and those of Go "
                "(needs root or user namespaces)");
  run->footer("The exit status is that of the program. 127: the program was not found; 126: it cannot be executed.");

  nupa::cli::LaunchOptions launch_options;
  CLI::App* launch =
      app.add_subcommand("launch", "Run the ranks of a job on this host: nupa launch -n 4 -- PROGRAM ARGS...");
  launch->add_option("-n,--ranks", launch_options.ranks, "Number of ranks")
      ->required()
      ->check(nupa::cli::number_between(1u, nupa::cli::kMostRanks));
  launch->add_option("--transport", launch_options.run.transport, "Same as nupa run --transport")->check(is_transport);
  bool no_label = false;
  launch->add_flag("--no-label", no_label, "Print the output of ranks without rank numbers");
  launch->add_option("--grace", launch_options.grace_seconds, "Seconds between SIGTERM and SIGKILL when the job ends")
      ->check(nupa::cli::number_between(0.0, nupa::cli::kLongestSeconds, "seconds"))
      ->capture_default_str();
  launch->footer(
      "Sets NUPA_RANK, NUPA_WORLD_SIZE, NUPA_LOCAL_RANK, NUPA_LOCAL_SIZE and NUPA_CCL_ROOT for each rank.\n"
      "Rank 0 reads the standard input. When a rank fails, the other ranks are ended.\n"
      "The exit status is that of the rank that failed first, or 128 plus the number of the signal that ended it.");

  bool json = false;
  bool dry_run = false;
  CLI::App* devices =
      app.add_subcommand("devices", "Show the devices, their addresses, and the source of each capability");
  devices->add_flag("--json", json, "Print JSON");
  CLI::App* stat = app.add_subcommand("stat", "Show the queue pairs of all processes of this user");
  nupa::cli::StatOptions stat_options;
  CLI::Option* stat_json = stat->add_flag("--json", stat_options.json, "Print JSON");
  CLI::Option* prometheus =
      stat->add_flag("--prometheus", stat_options.prometheus, "Print the text format of Prometheus")
          ->excludes(stat_json);
  stat->add_option("--output", stat_options.output,
                   "Replace this file at once, as node_exporter's textfile collector needs it (DIRECTORY/nupa.prom)")
      ->needs(prometheus);
  stat->add_option("--watch", stat_options.watch_seconds, "Repeat the output at this interval, in seconds")
      ->check(nupa::cli::number_between(nupa::cli::kShortestWatch, nupa::cli::kLongestSeconds, "seconds"));
  CLI::App* top = app.add_subcommand("top", "Show the traffic of this user's processes while it runs");
  nupa::cli::TopOptions top_options;
  top->add_option("--interval", top_options.interval, "Seconds between two looks")
      ->check(nupa::cli::number_between(nupa::cli::kShortestWatch, nupa::cli::kLongestSeconds, "seconds"))
      ->capture_default_str();
  top->add_option("--count", top_options.count, "Number of tables (default: until q or a signal)")
      ->check(nupa::cli::number_between(1u, std::numeric_limits<uint32_t>::max()));
  top->add_option("--by", top_options.by, "One line for each process, qp (queue pair) or device")
      ->check(is_one_of(nupa::cli::top_groups()))
      ->capture_default_str();
  top->add_option("--sort", top_options.sort, "The column that comes first: the highest rate, or the name")
      ->check(is_one_of(nupa::cli::top_columns()))
      ->capture_default_str();
  top->add_flag("--json", top_options.json, "Print a line of JSON for each table");
  top->footer(
      "Keys in a terminal: q quits; p, u and d show processes, queue pairs and devices;\n"
      "s, m, r, e and n sort by bytes sent, messages, receives, errors and name.");
  CLI::App* clean = app.add_subcommand("clean", "Remove the files that exited processes left in the runtime directory");
  clean->add_flag("--dry-run", dry_run, "List the files, and remove none");
  clean->add_flag("--json", json, "Print JSON");
  CLI::App* doctor = app.add_subcommand("doctor", "Check this machine, and print the remedy for each problem");
  nupa::cli::DoctorOptions doctor_options;
  doctor->add_flag("--json", doctor_options.json, "Print JSON");
  CLI::Option* of_program =
      doctor->add_option("program", doctor_options.program,
                         "Check which verbs libraries nupa run would give to this program, instead of the machine");
  doctor
      ->add_option("--pid", doctor_options.pid, "Check which verbs libraries this process has, instead of the machine")
      ->check(nupa::cli::number_between(1, std::numeric_limits<pid_t>::max()))
      ->excludes(of_program);
  doctor->footer(
      "nupa doctor -- PROGRAM and nupa doctor --pid PID find programs that NUPA does not reach.\n"
      "The exit status is 1 if there is a PROBLEM. A NOTE affects only the speed.");
  const nupa::cli::Subcommand capture = nupa::cli::add_capture(app);
  const nupa::cli::Subcommand ccl = nupa::cli::add_ccl(app, {argv, argv + argc});
  const nupa::cli::Subcommand net = nupa::cli::add_net(app);
  const nupa::cli::Subcommand gateway = nupa::cli::add_gateway(app);
  const nupa::cli::Subcommand pool = nupa::cli::add_pool(app);

  const std::vector<const CLI::App*> runners{run, launch};
  const auto print_definitions = [&] { throw CLI::CallForVersion(nupa::cli::definitions_of(app, runners), 0); };
  app.add_flag_callback("--print-definitions", print_definitions)->group("");

  const int command = start_of_command(runners, argc, argv);
  try {
    app.parse(command, argv);
  } catch (const CLI::Success& wanted) {  // --help, --version, --print-definitions
    std::ostringstream text;
    const int status = app.exit(wanted, text);
    fmt::print("{}", text.str());
    return status;
  } catch (const CLI::ParseError& error) {
    return report_usage(app, error.what());
  }
  if (*run || *launch) {
    const int first = command + (command < argc && std::string_view(argv[command]) == "--" ? 1 : 0);
    if (first >= argc) {
      std::fprintf(stderr, "nupa: %s: no program given (see nupa %s --help)\n", argv[1], argv[1]);
      return 2;
    }
    auto& program = *run ? run_options : launch_options.run;
    std::vector<std::string_view> replaced;
    if (*launch) replaced.assign(std::begin(nupa::cli::kSetByLaunch), std::end(nupa::cli::kSetByLaunch));
    if (!program.transport.empty()) replaced.push_back("NUPA_TRANSPORT");
    const std::string wrong = nupa::cli::wrong_settings(nupa::cli::CheckedFor::kProgram, replaced);
    if (!wrong.empty()) {
      std::fprintf(stderr, "nupa: %s: %s\n", argv[1], wrong.c_str());
      return 2;
    }
    program.command.assign(argv + first, argv + argc);
    launch_options.label = !no_label;
    return *run ? nupa::cli::run(run_options) : nupa::cli::launch(launch_options);
  }
  if (*capture.app) return capture.run();
  if (*ccl.app) return ccl.run();
  if (*net.app) return net.run();
  if (*gateway.app) return gateway.run();
  if (*pool.app) return pool.run();
  if (*devices) return nupa::cli::devices(json);
  if (*stat) return nupa::cli::stat(stat_options);
  if (*top) return nupa::cli::top(top_options);
  if (*clean) return nupa::cli::clean(dry_run, json);
  return nupa::cli::doctor(doctor_options);
}

}  // namespace

int main(int argc, char** argv) {
  open_closed_streams();
  int status = 1;
  int failed = 0;
  try {
    status = run_command(argc, argv);
    failed = flush_output();
  } catch (const std::system_error& error) {
    // fmt reports a failed write so.
    if (std::ferror(stdout) == 0)
      std::fprintf(stderr, "nupa: %s\n", error.what());
    else
      failed = error.code().value();
    status = 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nupa: %s\n", error.what());
    status = 1;
  }
  if (failed == 0) return status;
  std::fprintf(stderr, "nupa: cannot write standard output: %s\n", std::strerror(failed));
  return status != 0 ? status : 1;
}
