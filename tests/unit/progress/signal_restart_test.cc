// SPDX-License-Identifier: Apache-2.0
#include "progress/signal_restart.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "progress/clock.h"

namespace nupa::progress {
namespace {

/// A handler for as long as the object lives.
class Handler {
 public:
  Handler(int signal, int flags) : signal_(signal) {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    action.sa_flags = flags;
    sigaction(signal, &action, &before_);
  }
  ~Handler() { sigaction(signal_, &before_, nullptr); }
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;

 private:
  const int signal_;
  struct sigaction before_ {};
};

TEST(ProgressSignalRestart, NoHandlers_Restart) { EXPECT_EQ(look_at_handlers(), AfterSignals::kRestart); }

TEST(ProgressSignalRestart, HandlersOfOneKind_AreKnown) {
  {
    const Handler usual(SIGUSR1, SA_RESTART), another(SIGUSR2, SA_RESTART);
    EXPECT_EQ(look_at_handlers(), AfterSignals::kRestart);
  }
  const Handler ends(SIGUSR1, 0), last(SIGRTMAX, 0);
  EXPECT_EQ(look_at_handlers(), AfterSignals::kReturn);
}

TEST(ProgressSignalRestart, HandlersOfBothKinds_AreMixed) {
  const Handler restarts(SIGUSR1, SA_RESTART), ends(SIGRTMAX, 0);
  EXPECT_EQ(look_at_handlers(), AfterSignals::kMixed);
}

TEST(ProgressSignalRestart, HandlersOfFaults_InterruptNoSleep) {
  const Handler segment(SIGSEGV, 0), division(SIGFPE, 0), call(SIGSYS, 0);
  EXPECT_EQ(look_at_handlers(), AfterSignals::kRestart);
}

TEST(ProgressSignalRestart, Result_IsKeptForASecond) {
  constexpr int64_t kSecondNs = 1'000'000'000;
  const int64_t now = now_ns() + 10 * kSecondNs;
  ASSERT_EQ(after_signals(now), AfterSignals::kRestart);
  const Handler ends(SIGUSR1, 0);
  EXPECT_EQ(after_signals(now + kSecondNs - 1), AfterSignals::kRestart);
  EXPECT_EQ(after_signals(now + kSecondNs), AfterSignals::kReturn);
}

}  // namespace
}  // namespace nupa::progress
