// SPDX-License-Identifier: Apache-2.0
#include "progress/signal_restart.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <iterator>

namespace nupa::progress {
namespace {

constexpr int64_t kKnownForNs = 1'000'000'000;

/// True for signals that the thread itself causes: they interrupt no sleep.
bool is_fault(int signal) {
  constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
  return std::ranges::find(kFaults, signal) != std::end(kFaults);
}

}  // namespace

AfterSignals look_at_handlers() {
  bool restarts = false;
  bool returns = false;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action;
    if (is_fault(signal) || sigaction(signal, nullptr, &action) != 0) continue;
    if ((action.sa_flags & SA_SIGINFO) == 0 && (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN)) continue;
    ((action.sa_flags & SA_RESTART) != 0 ? restarts : returns) = true;
  }
  if (restarts && returns) return AfterSignals::kMixed;
  return returns ? AfterSignals::kReturn : AfterSignals::kRestart;
}

AfterSignals after_signals(int64_t now_ns) {
  static std::atomic<int64_t> looked_ns{INT64_MIN / 2};
  static std::atomic<AfterSignals> found{AfterSignals::kRestart};
  // A thread that sees the time of a look sees what was found, too.
  if (now_ns - looked_ns.load(std::memory_order_acquire) >= kKnownForNs) {
    found.store(look_at_handlers(), std::memory_order_relaxed);
    looked_ns.store(now_ns, std::memory_order_release);
  }
  return found.load(std::memory_order_relaxed);
}

}  // namespace nupa::progress
