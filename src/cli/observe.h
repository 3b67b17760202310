#pragma once
#include <memory>
#include <vector>

#include "host/introduction.h"
#include "host/runtime_dir.h"

namespace nupa::cli {

/// A process that was looked at: its tables, mapped. It does not notice.
struct Observed {
  host::Introduced process;
  base::UniqueFd connection;  ///< held as long as it is looked at
};

struct Observation {
  std::vector<Observed> processes;  ///< all of the runtime directory that answer within a moment
  std::vector<uint32_t> silent;     ///< slots of those that take connections and do not answer: stopped, most often
};
Observation observe_all(host::RuntimeDir& dir);

}  // namespace nupa::cli
