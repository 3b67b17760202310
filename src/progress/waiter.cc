// SPDX-License-Identifier: Apache-2.0
#include "progress/waiter.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

namespace nupa::progress {

void Waiter::give_way() {
  if (policy_.yield_ns != INT64_MAX) {
    const int64_t now = now_ns();
    if (yields_since_ns_ == 0) yields_since_ns_ = now;
    if (now - yields_since_ns_ >= policy_.yield_ns) {
      sleep_for(policy_.nap_ns);
      return;
    }
  }
  yield();
}

void yield() { sched_yield(); }

void sleep_for(int64_t ns) {
  const int64_t until = Deadline::in_ns(ns).at_ns();
  const timespec end{until / kNsPerSecond, until % kNsPerSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr) == EINTR) {
  }
}

void sleep_for_ever() {
  for (;;) pause();
}

}  // namespace nupa::progress
