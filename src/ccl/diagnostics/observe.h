#pragma once
#include <nupa/ccl.h>

#include <cstdint>

#include "ccl/diagnostics/event.h"

namespace nupa::ccl {

/// A profiler of the program. What was set once stays in memory: operations end by the one that they began with.
struct Profiler {
  nupa_ccl_profile begin;
  nupa_ccl_profile end;
  void* context;
  const Profiler* before;  ///< all that were set stay: a thread may still use one
};
/// Null: there is none.
const Profiler* profiler_now();
/// ENOMEM.
int set_profiler(nupa_ccl_profile begin, nupa_ccl_profile end, void* context);

/// One operation, or message, that is observed, from its begin to its end.
class Observed {
 public:
  /// It begins: event.begin_ns is set.
  explicit Observed(const Event& event);
  /// It ends: event.end_ns is set where it is not yet.
  void end();
  Event event;

 private:
  const Profiler* const profiler_;
};

}  // namespace nupa::ccl
