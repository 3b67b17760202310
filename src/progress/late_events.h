// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::progress {

/// Events that a thread raises while it holds a queue pair wait until it has let go: the program that they wake wants
/// the queue pair at once, and would find it held by a thread that it may have preempted. Each function is for the
/// calling thread alone.
class LateEvents {
 public:
  using Raise = void (*)(void* owner, uint32_t event);

  /// From now on events of this thread wait.
  static void begin();
  /// Raises those that wait, and from now on each at once. Also without begin().
  static void end();
  /// Between begin() and end().
  static bool begun();
  /// end() calls `raise` with these. False: events do not wait, or there is no room for one more. Then the caller
  /// raises it.
  static bool keep(Raise raise, void* owner, uint32_t event);
};

}  // namespace nupa::progress
