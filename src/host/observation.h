// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "host/handshake.h"
#include "host/runtime_dir.h"

namespace nupa::host {

/// An observed process with its tables, which are mapped. The program in it does not notice it.
struct Observed {
  Handshake process;
  base::UniqueFd connection;  ///< open during the observation
};

struct Observation {
  std::vector<Observed> processes;  ///< the processes of the runtime directory that have answered in time
  std::vector<uint32_t> silent;  ///< slots of processes that accept connections but do not answer: most often stopped
};
/// Asks all processes of the directory at once, and waits `timeout_ms` for all answers together. A process brings the
/// counts of its ports up to date before it answers (NodeEvents::on_observed).
Observation observe_all(RuntimeDir& directory, int timeout_ms);

}  // namespace nupa::host
