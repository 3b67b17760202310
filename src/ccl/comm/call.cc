#include "ccl/comm/call.h"

namespace nupa::ccl {

const char* name_of(Operation operation) {
  constexpr const char* kNames[kOperations] = {"barrier",        "broadcast",  "gather", "scatter",
                                               "all_gather",     "all_to_all", "reduce", "all_reduce",
                                               "reduce_scatter", "scan",       "exscan"};
  return kNames[static_cast<size_t>(operation)];
}

}  // namespace nupa::ccl
