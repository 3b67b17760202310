// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::progress {

/// Delays the events that a thread raises while it holds a queue pair, until it has released it. The program that they
/// wake needs the queue pair at once, and would find it locked by a thread that it may have preempted. Each function
/// acts on the calling thread alone.
class LateEvents {
 public:
  using Raise = void (*)(void* owner, uint32_t event);

  /// From now on events of this thread are delayed.
  static void begin();
  /// Raises the delayed events; later events are raised at once. May be called without begin().
  static void end();
  /// True between begin() and end().
  static bool begun();
  /// Delays an event: end() calls `raise` with these arguments. False: events are not delayed, or there is no room for
  /// one more. Then the caller raises it.
  static bool keep(Raise raise, void* owner, uint32_t event);
};

}  // namespace nupa::progress
