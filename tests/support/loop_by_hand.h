// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "progress/loop.h"

namespace nupa::progress {

/// Turns a loop one step at a time, for tests that open it with a clock of their own. The deadline of a turn is in the
/// loop's time; a loop in simulated time gets one that has passed.
class LoopByHand {
 public:
  /// One turn, which sleeps no longer than the deadline. False: nothing was to be done.
  static bool turn(Loop& loop, Deadline deadline) { return loop.run_once(deadline); }
  /// When the earliest timer is due; INT64_MAX: none is set. Any thread.
  static int64_t next_due_ns(const Loop& loop) { return loop.next_due_ns(); }
};

}  // namespace nupa::progress
