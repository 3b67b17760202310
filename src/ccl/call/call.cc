// SPDX-License-Identifier: Apache-2.0
#include "ccl/call/call.h"

namespace nupa::ccl {

const char* name_of(Operation operation) {
  constexpr const char* kNames[kOperations] = {"barrier",        "broadcast",  "gather", "scatter",
                                               "all_gather",     "all_to_all", "reduce", "all_reduce",
                                               "reduce_scatter", "scan",       "exscan"};
  return kNames[static_cast<size_t>(operation)];
}

const char* name_of(const Call& call) {
  constexpr const char* kPurposes[] = {"", "comm_split", "comm_dup", "comm_destroy"};
  constexpr const char* kWithLists[kOperations] = {
      "", "", "gatherv", "scatterv", "all_gatherv", "all_to_allv", "", "", "reduce_scatterv", "", ""};
  if (call.purpose != Purpose::kItself) return kPurposes[static_cast<size_t>(call.purpose)];
  return call.equal ? name_of(call.operation) : kWithLists[static_cast<size_t>(call.operation)];
}

}  // namespace nupa::ccl
