// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace nupa::cli {

/// Prints "nupa: COMMAND: WHAT" on standard error. Returns 1, the exit status of a failure.
int report_failure(const char* command, const std::string& what);

}  // namespace nupa::cli
