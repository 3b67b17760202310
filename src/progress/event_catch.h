// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/export.h>

#include <cstdint>

#include "progress/event_descriptor.h"

namespace nupa::progress {

/// A thread waits for events of one descriptor, and does work that may make such events itself. Those stay here, so
/// that they need not be written to the descriptor and read again: the thread takes one of them, and the rest is
/// written when this ends. One at a time in a thread; for that thread alone.
class NUPA_EXPORT EventCatch {
 public:
  explicit EventCatch(const EventDescriptor& events);
  ~EventCatch();
  EventCatch(const EventCatch&) = delete;
  EventCatch& operator=(const EventCatch&) = delete;

  /// The eventfd: readable while an event waits that another thread or process made.
  int fd() const { return events_.signal_fd(); }
  /// An event is here or waits there.
  bool is_there() const;
  /// The thread is about to sleep until the eventfd is readable: from now on all events are written there, those of a
  /// signal handler too. False: one is here already.
  bool begin_sleep();
  void end_sleep();
  /// Takes one that is here. False: there is none.
  bool take();

  /// The calling thread makes an event for the eventfd. True: it waits for that one itself, and has it.
  static bool keep(int signal_fd);

 private:
  const EventDescriptor& events_;
};

}  // namespace nupa::progress
