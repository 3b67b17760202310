// SPDX-License-Identifier: Apache-2.0
/// `nupa ccl` of a build without Highway, which collectives need.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/commands.h"

namespace nupa::cli {

Subcommand add_ccl(CLI::App& app, std::vector<std::string>) {
  CLI::App* const ccl = app.add_subcommand("ccl", "Collectives (not in this build)");
  ccl->allow_extras();
  return {ccl, [] {
            std::fprintf(stderr, "nupa: ccl: this build has no collectives: install libhwy-dev and build again\n");
            return 1;
          }};
}

}  // namespace nupa::cli
