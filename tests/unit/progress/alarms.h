// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <signal.h>
#include <sys/time.h>

#include <atomic>

namespace nupa::progress::test {

/// SIGALRM each millisecond, which interrupts system calls.
class Alarms {
 public:
  Alarms() {
    struct sigaction action {};
    action.sa_handler = [](int) { count.fetch_add(1); };
    sigaction(SIGALRM, &action, &before_);
    const itimerval each{{0, 1'000}, {0, 1'000}};
    setitimer(ITIMER_REAL, &each, nullptr);
  }
  ~Alarms() {
    const itimerval none{};
    setitimer(ITIMER_REAL, &none, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }
  Alarms(const Alarms&) = delete;
  Alarms& operator=(const Alarms&) = delete;

  static inline std::atomic<int> count{0};

 private:
  struct sigaction before_ {};
};

}  // namespace nupa::progress::test
