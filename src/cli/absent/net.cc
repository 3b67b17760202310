// SPDX-License-Identifier: Apache-2.0
/// `nupa net` of a build without nettle, which it needs.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/commands.h"

namespace nupa::cli {

Subcommand add_net(CLI::App& app) {
  CLI::App* const net = app.add_subcommand("net", "Network device for IP programs (not in this build)");
  net->allow_extras();
  return {net, [] {
            std::fprintf(stderr, "nupa: net: this build has no network device: install nettle-dev and build again\n");
            return 1;
          }};
}

}  // namespace nupa::cli
