// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "cli/finding.h"

namespace nupa::cli {

/// The libibverbs and librdmacm of a process that runs, and if they are NUPA's.
std::vector<Finding> findings_of_process(pid_t pid);

/// The same of a program as `nupa run` would start it. It is not started: the dynamic loader lists its libraries.
std::vector<Finding> findings_of_program(const std::string& name);

}  // namespace nupa::cli
