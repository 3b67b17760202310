// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/ccl.h>

#include <cstdint>

#include "ccl/diagnostics/event.h"

namespace nupa::ccl {

/// A profiler of the program. It is never freed, because an operation ends with the profiler that it began with.
struct Profiler {
  nupa_ccl_profile begin;
  nupa_ccl_profile end;
  void* context;
  const Profiler* before;  ///< the one that was set before, which a thread may still use
};
/// The current profiler. Null: there is none.
const Profiler* profiler_now();
/// Sets the current profiler; without functions, there is none any more. ENOMEM: no memory.
int set_profiler(nupa_ccl_profile begin, nupa_ccl_profile end, void* context);

/// An observed operation or message, from its begin to its end.
class Observed {
 public:
  /// Sets event.begin_ns and calls the profiler.
  explicit Observed(const Event& event);
  /// Sets event.end_ns if it is not set, and reports the event to the trace and the profiler.
  void end();
  Event event;

 private:
  const Profiler* const profiler_;
};

}  // namespace nupa::ccl
