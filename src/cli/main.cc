#include <CLI/CLI.hpp>
#include <cstdio>
#include <string_view>

#include "commands.h"
#include "nupa_config.h"

namespace {

/// Where the program and its arguments begin: behind "--", or at the first word that is no option of `run`. The parser
/// must not see them, since it takes words such as [a,b] apart.
int start_of_command(const CLI::App& run, int argc, char** argv) {
  if (argc < 2 || run.get_name() != argv[1]) return argc;
  int at = 2;
  for (; at < argc && argv[at][0] == '-'; ++at) {
    const std::string_view word = argv[at];
    if (word == "--") break;
    const CLI::Option* option = run.get_option_no_throw(std::string(word));
    if (option != nullptr && option->get_items_expected_max() > 0 && at + 1 < argc) ++at;
  }
  return at;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"NUPA: RDMA verbs on any Linux machine, with no adapter, no kernel module and no root"};
  app.set_version_flag("--version", std::string("nupa ") + NUPA_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Environment:\n"
      "  NUPA_RUNTIME_DIR   where processes of one user meet (default $XDG_RUNTIME_DIR/nupa or /dev/shm/nupa-UID)\n"
      "  NUPA_TRANSPORT     auto, window or roce\n"
      "  NUPA_REMAP         auto, always or never: how registered memory is shared (docs/memory.md)\n"
      "  NUPA_DEVICES       the interfaces of each device: eth0,eth1 gives nupa0 and nupa1, eth0+eth1 gives nupa0 two\n"
      "  NUPA_CONGESTION    none, dcqcn, swift or cubic: congestion control of packets (docs/roce.md)\n"
      "  NUPA_ROCE_ICRC     on, or off: packets without invariant CRC to peers that have it off as well\n"
      "  NUPA_ROCE_SOURCE_PORTS  1 to 4: packets leave from so many UDP ports, for switches that spread flows by them\n"
      "  NUPA_ROCE_PEERS    any, or standard: nothing but the standard is spoken, every peer is at port 4791\n"
      "  NUPA_LOG           error, warn, info or debug");

  nupa::cli::RunOptions run_options;
  CLI::App* run = app.add_subcommand("run", "Run any program on NUPA: nupa run [options] -- PROGRAM ARGS...");
  run->add_option("--transport", run_options.transport, "auto, window or roce (default $NUPA_TRANSPORT, or auto)")
      ->check(CLI::IsMember({"auto", "window", "roce"}));
  run->add_flag("--sockets", run_options.sockets,
                "TCP connections go over RDMA where the peer runs so too (docs/rsockets.md)");
  run->add_flag("--verbose", run_options.verbose, "Say what NUPA does (NUPA_LOG=info)");
  run->footer("The exit status and signals are the program's; 127: not found, 126: cannot be executed.");

  bool json = false;
  double watch = 0;
  bool dry_run = false;
  CLI::App* devices =
      app.add_subcommand("devices", "Show the devices, their addresses, and where each capability comes from");
  devices->add_flag("--json", json, "Machine-readable output");
  CLI::App* stat = app.add_subcommand("stat", "Show the live queue pairs of all this user's processes");
  stat->add_flag("--json", json, "Machine-readable output");
  stat->add_option("--watch", watch, "Repeat every so many seconds")->check(CLI::PositiveNumber);
  CLI::App* clean = app.add_subcommand("clean", "Remove what no live process holds");
  clean->add_flag("--dry-run", dry_run, "Only say what would be removed");
  CLI::App* doctor = app.add_subcommand("doctor", "Show what on this machine helps or hinders, and the remedy");
  doctor->add_flag("--json", json, "Machine-readable output");
  doctor->footer("Exit status 1 if there is a PROBLEM; a NOTE costs speed only.");

  const int command = start_of_command(*run, argc, argv);
  try {
    app.parse(command, argv);
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "nupa: %s (see nupa --help)\n", error.what());
    return 2;
  }
  if (*run) {
    const int first = command + (command < argc && std::string_view(argv[command]) == "--" ? 1 : 0);
    if (first >= argc) {
      std::fputs("nupa: run: no program is named (see nupa run --help)\n", stderr);
      return 2;
    }
    run_options.command.assign(argv + first, argv + argc);
    return nupa::cli::run(run_options);
  }
  if (*devices) return nupa::cli::devices(json);
  if (*stat) return nupa::cli::stat(json, watch);
  if (*clean) return nupa::cli::clean(dry_run);
  return nupa::cli::doctor(json);
}
