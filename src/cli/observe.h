// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "host/handshake.h"
#include "host/runtime_dir.h"

namespace nupa::cli {

/// An observed process with its tables, which are mapped. The process does not notice it.
struct Observed {
  host::Handshake process;
  base::UniqueFd connection;  ///< open during the observation
};

struct Observation {
  std::vector<Observed> processes;  ///< the processes of the runtime directory that have answered in time
  std::vector<uint32_t> silent;  ///< slots of processes that accept connections but do not answer: most often stopped
};
Observation observe_all(host::RuntimeDir& dir);
/// An array with an object for each queue pair of these processes, as `nupa stat --json` prints it.
nlohmann::json rows_of(const std::vector<Observed>& processes);

}  // namespace nupa::cli
