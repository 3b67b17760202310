// SPDX-License-Identifier: Apache-2.0
#include "progress/wake_up.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/system_error.h"

namespace nupa::progress {

WakeUp& WakeUp::of_thread() {
  // The object has no destructor: functions registered by atexit() may sleep after the destructors of the thread's
  // other objects have run. They get a new descriptor, which is closed at the end of the process.
  constinit thread_local WakeUp own;
  struct CloseAtThreadExit {
    ~CloseAtThreadExit() { own.close(); }
  };
  if (own.process_ != getpid()) {
    thread_local CloseAtThreadExit close_at_thread_exit;
    [[maybe_unused]] const auto opened = own.open();
  }
  return own;
}

Result<void> WakeUp::open() {
  close();
  fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  process_ = getpid();
  signalled_.store(false);
  if (fd_ < 0) return base::fail_call(errno, "cannot create an eventfd to wake a thread");
  return {};
}

void WakeUp::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  process_ = 0;
}

void WakeUp::signal() {
  if (signalled_.exchange(true)) return;
  // take() would find nothing to read, so the next signal has to try again.
  if (!add_to(fd_)) signalled_.store(false);
}

void WakeUp::take() {
  if (signalled_.load()) take_all();
}

void WakeUp::take_all() {
  uint64_t count;
  // Nothing to read yet: signal() is about to write. signalled_ stays set, so that a later take() reads it.
  if (read(fd_, &count, sizeof count) < 0) return;
  // Cleared only now: the check that follows sees each change that came before this line.
  signalled_.exchange(false);
}

bool WakeUp::add_to(int fd, uint64_t events) { return write(fd, &events, sizeof events) == sizeof events; }

}  // namespace nupa::progress
