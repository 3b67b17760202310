#pragma once
#include <memory>
#include <vector>

#include "cm/introduction.h"
#include "cm/runtime_dir.h"

namespace nupa::cli {

/// A process that was looked at: its tables, mapped. It does not notice.
struct Observed {
  cm::Introduced process;
  base::UniqueFd connection;  ///< held as long as it is looked at
};

struct Observation {
  std::vector<Observed> processes;  ///< all of the runtime directory that answer within a moment
  std::vector<uint32_t> silent;     ///< slots of those that take connections and do not answer: stopped, most often
};
Observation observe_all(cm::RuntimeDir& dir);

}  // namespace nupa::cli
