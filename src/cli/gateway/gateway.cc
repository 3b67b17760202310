// SPDX-License-Identifier: Apache-2.0
/// `nupa gateway`: connections of rdma_cm between hosts without a path to each other (docs/design/gateway.md).
#include <fmt/core.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/unique_fd.h"
#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/ranges.h"
#include "gateway/gateway.h"

namespace nupa::cli {
namespace {

constexpr uint64_t kKibibyte = 1024;

struct Given {
  std::vector<std::string> mappings;
  uint64_t window_kib = 1024;
  uint32_t connections = 256;
};

int run(const Given& given) {
  gateway::GatewayOptions options;
  for (const std::string& text : given.mappings) {
    const auto mapping = gateway::Mapping::parse(text);
    if (!mapping) return report_failure("gateway", "--for: '" + text + "': " + mapping.error().what());
    options.mappings.push_back(*mapping);
  }
  options.window = given.window_kib * kKibibyte;
  options.most_connections = given.connections;
  // A relay serves packets and records and not shared tables, so programs of this host use these to the gateway, too.
  const char* const transports = base::text_setting("NUPA_TRANSPORT");
  if (transports == nullptr || std::string(transports) == "auto") {
    setenv("NUPA_TRANSPORT", "pool,roce", 1);
  } else {
    const std::string names = std::string(",") + transports + ",";
    for (const char* const shared : {",shm,", ",window,"})
      if (names.find(shared) != names.npos)
        return report_failure(
            "gateway", fmt::format("NUPA_TRANSPORT={}: a gateway cannot use shm (leave it out, or unset the variable)",
                                   transports));
  }
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts
  const base::UniqueFd ended(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  auto gateway = gateway::Gateway::open(options);
  if (!gateway) return report_failure("gateway", gateway.error().what());
  for (const gateway::Mapping& mapping : options.mappings) fmt::print("gateway: {}\n", mapping.text());
  std::fflush(stdout);
  const auto done = (*gateway)->run(ended.get());
  return done ? 0 : report_failure("gateway", done.error().what());
}

}  // namespace

Subcommand add_gateway(CLI::App& app) {
  auto given = std::make_shared<Given>();
  CLI::App* const command =
      app.add_subcommand("gateway", "Join two fabrics for RDMA connections (docs/guides/gateway.md)");
  command
      ->add_option("--for", given->mappings,
                   "LISTEN[:PORT]=FAR[:PORT]: connections to this host's address LISTEN go to the host FAR; may be "
                   "repeated")
      ->required()
      ->type_name("MAPPING")
      ->check(CLI::Validator(
          [](const std::string& text) {
            const auto mapping = gateway::Mapping::parse(text);
            return mapping ? std::string() : fmt::format("'{}': {}", text, mapping.error().what());
          },
          ""));
  command->add_option("--window", given->window_kib, "KiB of each buffer; a connection has four, used as needed")
      ->check(number_between(gateway::kLeastWindow / kKibibyte, gateway::kLargestWindow / kKibibyte))
      ->capture_default_str();
  command->add_option("--connections", given->connections, "The most connections at a time")
      ->check(number_between(1u, 4096u))
      ->capture_default_str();
  command->footer("The gateway runs until SIGINT, SIGTERM or SIGHUP.");
  return {command, [given] { return run(*given); }};
}

}  // namespace nupa::cli
