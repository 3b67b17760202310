// SPDX-License-Identifier: Apache-2.0
#include "cli/failure.h"

#include <cstdio>

namespace nupa::cli {

int report_failure(const char* command, const std::string& what) {
  std::fprintf(stderr, "nupa: %s: %s\n", command, what.c_str());
  return 1;
}

}  // namespace nupa::cli
