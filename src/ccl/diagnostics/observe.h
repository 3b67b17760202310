#pragma once
#include <nupa/ccl.h>

#include <atomic>
#include <cstdint>

#include "ccl/coroutine/steps.h"

namespace nupa::ccl {

/// What is told of operations, to a trace and to the program's profiler.
using Event = nupa_ccl_event;

/// Whether anybody wants to know of operations: a trace, a profiler or the checking mode. One load where nobody does.
/// Once somebody did, it stays.
inline std::atomic<bool> is_anybody_observing{false};
inline bool is_observed() { return __builtin_expect(is_anybody_observing.load(std::memory_order_relaxed), 0); }

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
