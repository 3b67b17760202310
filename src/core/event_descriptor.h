#pragma once
#include <nupa/result.h>

#include <atomic>
#include <memory>

#include "base/unique_fd.h"

namespace nupa::core {

/// A descriptor of the program that is readable while an event waits, and never writable: an epoll descriptor in front
/// of an eventfd, which counts the events. The kernel's own event descriptors report readability only, and a program
/// that polls one for both would spin. The program may poll it, select it, add it to an epoll set (edge-triggered: each
/// event is an edge) and set O_NONBLOCK on it. It costs two descriptors, both close-on-exec. Any thread.
class EventDescriptor {
 public:
  /// Both descriptors have numbers from `lowest` on, where there are such. EMFILE, ENFILE, ENOMEM.
  static Result<std::unique_ptr<EventDescriptor>> open(int lowest = 0);
  ~EventDescriptor();
  EventDescriptor(const EventDescriptor&) = delete;
  EventDescriptor& operator=(const EventDescriptor&) = delete;

  /// For the program.
  int fd() const { return fd_; }
  /// The eventfd. Another process that has it adds an event by writing 1.
  int signal_fd() const { return signal_.get(); }

  /// So many events more. Any thread, signal handlers.
  void count(uint32_t events = 1) const;
  /// One event less, for one that is not to be told any more. False: a reader was faster, and will find nothing. Never
  /// waits.
  bool take_back() const;
  /// Takes one event. Waits for it unless O_NONBLOCK is set on fd(), as read() does: a signal handler that was
  /// installed with SA_RESTART does not end it. Returns 0; EAGAIN: none is there; EINTR; EBADF: the program closed the
  /// descriptor.
  int take() const;

  /// Closes the program's descriptor. A thread that waits in take() waits on.
  void hide();

 private:
  EventDescriptor(base::UniqueFd shown, base::UniqueFd signal) : fd_(shown.release()), signal_(std::move(signal)) {}

  const int fd_;
  const base::UniqueFd signal_;
  std::atomic<bool> hidden_{false};
};

}  // namespace nupa::core
