// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/export.h>
#include <nupa/result.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "base/unique_fd.h"

namespace nupa::progress {

/// A descriptor for the program that is readable while an event waits, and never writable: an epoll descriptor in front
/// of an eventfd, which counts the events. The kernel's own event descriptors report readability only, and a program
/// that polls an eventfd for both would spin. The program may poll it, select it, add it to an epoll set
/// (edge-triggered: each event is an edge) and set O_NONBLOCK on it. It costs two descriptors, both close-on-exec. Any
/// thread.
class NUPA_EXPORT EventDescriptor {
 public:
  /// Both descriptors get numbers from `lowest` on, if such numbers are free. EMFILE, ENFILE, ENOMEM.
  static Result<std::unique_ptr<EventDescriptor>> open(int lowest = 0);

  /// The descriptor for the program.
  int fd() const { return fd_.get(); }
  /// The same, but the caller closes it: it is in a structure that the program may write to.
  int release_fd() { return fd_.release(); }
  /// The eventfd. Another process that has it adds an event by writing 1.
  int signal_fd() const { return signal_.get(); }

  /// Adds events. Any thread, signal handlers.
  void count(uint32_t events = 1) const;
  /// Removes one event that must not be reported any more. False: a reader was faster, and will find nothing. Never
  /// waits.
  bool take_back() const;
  /// Number of events that wait. Slow: for rare calls.
  uint32_t waiting() const;
  /// Takes one event. Waits for it unless O_NONBLOCK is set on `shown`, which is fd() or the program's descriptor in
  /// its place. It waits as read() does: neither a signal handler installed with SA_RESTART nor the close of the
  /// program's descriptor ends the wait. Returns 0; EAGAIN: there is none; EINTR; EBADF: the descriptor was closed.
  int take(int shown) const {
    return take(shown, true, [] { return 0; });
  }
  int take() const { return take(fd()); }
  /// The same, but calls `instead()` before it sleeps, which may sleep in its place until signal_fd() is readable.
  /// `instead()` returns kReadable when it was readable, kTaken when it has taken the event, an errno value that ends
  /// the wait, or 0: it does not sleep. `expected`: an event is there, or may be. Otherwise it looks for one only if
  /// the caller would not sleep.
  static constexpr int kReadable = -1;
  static constexpr int kTaken = -2;
  template <class Instead>
  int take(int shown, bool expected, Instead instead) const {
    for (bool looks = expected;; looks = true) {
      if (looks && take_back()) return 0;
      const int error = check_waits(shown);
      if (error == EAGAIN && !looks && take_back()) return 0;
      if (error != 0) return error;
      const int slept = instead();
      if (slept == 0) return read_one();
      if (slept == kTaken) return 0;
      if (slept != kReadable) return slept;
    }
  }

 private:
  /// EAGAIN: O_NONBLOCK is set on `shown`. EBADF.
  static int check_waits(int shown);
  int read_one() const;

  EventDescriptor(base::UniqueFd shown, base::UniqueFd signal) : fd_(std::move(shown)), signal_(std::move(signal)) {}

  base::UniqueFd fd_;
  const base::UniqueFd signal_;
};

}  // namespace nupa::progress
