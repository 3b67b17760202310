// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

#include <nupa/export.h>
#include <nupa/result.h>

namespace nupa::progress {

/// An eventfd that wakes one sleeper, beside the other descriptors that it sleeps on. The sleeper clears the signals by
/// take(), checks once more what it waits for, and only then sleeps.
///
/// Memory order: signal() exchanges `signalled_` after the change that it announces, and writes the eventfd if the flag
/// was not set. take() reads the eventfd and then exchanges the flag. An exchange acquires what each earlier one
/// released, also that of a signal() which found the flag set and wrote nothing. So the check after take() sees each
/// change whose signal was taken back, and any other signal leaves the eventfd readable.
class WakeUp {
 public:
  /// The calling thread's object, for sleeps in calls of the program. A forked child has its own one. So do functions
  /// that run after the destructors of the thread's other objects.
  NUPA_EXPORT static WakeUp& of_thread();

  /// Has no descriptor until open().
  constexpr WakeUp() = default;
  /// EMFILE, ENFILE, ENOMEM. The owner calls close(): there is no destructor, because of of_thread().
  NUPA_EXPORT Result<void> open();
  NUPA_EXPORT void close();

  /// -1: there is no descriptor (EMFILE), and the sleeper has to poll.
  int fd() const { return fd_; }
  /// Any thread or signal handler. One write, or none if it is signalled already.
  NUPA_EXPORT void signal();
  /// Clears the signals so far. The owner checks once more after this.
  NUPA_EXPORT void take();
  /// The same if other processes have the descriptor and signal by writing 1 to it.
  NUPA_EXPORT void take_all();

  /// Adds events to the eventfd of another sleeper or process: one write. False: it is full, or not an eventfd. Any
  /// thread or signal handler.
  NUPA_EXPORT static bool add_to(int fd, uint64_t events = 1);

  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;

 private:
  int fd_ = -1;
  int process_ = 0;  ///< the process that opened the descriptor
  std::atomic<bool> signalled_{false};
};

}  // namespace nupa::progress
