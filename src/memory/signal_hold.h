// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <signal.h>
#include <time.h>

namespace nupa::memory {

/// Blocks all signals of the calling thread while the object lives: a handler that wrote to a page being moved would
/// wait for the thread that it interrupted. A write beyond RLIMIT_FSIZE raises SIGXFSZ here, which is discarded: the
/// call's EFBIG has the same information, and the signal would end the process by default.
class SignalHold {
 public:
  SignalHold() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
    sigset_t pending;
    sigpending(&pending);
    had_xfsz_ = sigismember(&pending, SIGXFSZ) == 1;
  }
  SignalHold(const SignalHold&) = delete;
  SignalHold& operator=(const SignalHold&) = delete;
  ~SignalHold() {
    sigset_t pending;
    sigpending(&pending);
    if (!had_xfsz_ && sigismember(&pending, SIGXFSZ) == 1) {
      sigset_t xfsz;
      sigemptyset(&xfsz);
      sigaddset(&xfsz, SIGXFSZ);
      const timespec now{};
      sigtimedwait(&xfsz, nullptr, &now);
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t before_;
  bool had_xfsz_ = false;
};

}  // namespace nupa::memory
