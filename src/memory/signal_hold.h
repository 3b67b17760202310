#pragma once
#include <signal.h>
#include <time.h>

namespace nupa::memory {

/// Keeps signal handlers off the calling thread while it lives: a handler that wrote to a page on
/// the move would wait for the very thread that it interrupted. SIGXFSZ, which a write beyond
/// RLIMIT_FSIZE raises here, is swallowed: the call's EFBIG tells the same, and the signal's
/// default is to end the process.
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
