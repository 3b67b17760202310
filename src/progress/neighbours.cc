// SPDX-License-Identifier: Apache-2.0
#include "progress/neighbours.h"

#include <sched.h>

#include "progress/clock.h"

namespace nupa::progress {

void Neighbours::yield() {
  const int64_t before = now_ns();
  sched_yield();
  yielded(now_ns() - before);
}

Neighbours& Neighbours::of_thread() {
  [[gnu::tls_model("initial-exec")]] constinit thread_local Neighbours own;
  return own;
}

}  // namespace nupa::progress
