// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/export.h>

#include <cstdint>

#include "progress/event_descriptor.h"

namespace nupa::progress {

/// Keeps events that a thread makes for the descriptor on which it waits itself. They need not be written to the
/// descriptor and read again: the thread takes one of them, and the destructor writes the rest. One object at a time in
/// a thread; for that thread alone.
class NUPA_EXPORT EventCatch {
 public:
  explicit EventCatch(const EventDescriptor& events);
  ~EventCatch();
  EventCatch(const EventCatch&) = delete;
  EventCatch& operator=(const EventCatch&) = delete;

  /// The eventfd: readable while an event of another thread or process waits.
  int fd() const { return events_.signal_fd(); }
  /// True if an event is kept here or waits in the eventfd.
  bool is_there() const;
  /// The thread is about to sleep until the eventfd is readable. From now on all events are written there, also those
  /// of a signal handler. False: an event is kept here already.
  bool begin_sleep();
  void end_sleep();
  /// Takes an event that is kept here. False: there is none.
  bool take();

  /// The calling thread makes an event for the eventfd. True: it waits for that eventfd itself, and the event is kept.
  static bool keep(int signal_fd);

 private:
  const EventDescriptor& events_;
};

}  // namespace nupa::progress
