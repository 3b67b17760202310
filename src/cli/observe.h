// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nlohmann/json.hpp>
#include <vector>

#include "host/observation.h"

namespace nupa::cli {

/// host::observe_all(), with a notice if it takes long.
host::Observation observe_all(host::RuntimeDir& dir);
/// An array with an object for each queue pair of these processes, as `nupa stat --json` prints it.
nlohmann::json rows_of(const std::vector<host::Observed>& processes);

}  // namespace nupa::cli
