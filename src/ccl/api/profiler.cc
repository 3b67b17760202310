// SPDX-License-Identifier: Apache-2.0
#include "ccl/api/handles.h"

using namespace nupa::ccl;

extern "C" {

NUPA_EXPORT int nupa_ccl_set_profiler(nupa_ccl_profile begin, nupa_ccl_profile end, void* context) {
  const int error = set_profiler(begin, end, context);
  return error == 0 ? 0 : report(error, "no memory for the profiler");
}

}  // extern "C"
