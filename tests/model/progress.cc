// SPDX-License-Identifier: Apache-2.0
// The lines of src/progress that are not in headers, as all cases have them.
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "shadow.h"
#include "eventfd.h"

namespace nupa::progress {

/// For clock_nanosleep(2).
inline int time_goes_by(clockid_t, int, const timespec*, timespec*) {
  model::pause();
  return 0;
}

}  // namespace nupa::progress

// Its arguments' types would have the system's function found beside one of the same name.
#define clock_nanosleep time_goes_by
#include "progress/condition.cc"
#include "progress/waiter.cc"
#include "progress/wake_up.cc"
#include "progress/lifecycle.h"

namespace nupa::progress {

/// No case forks.
uint32_t process_generation() { return 0; }
void close_in_children(int) {}
void forget_for_children(int) {}
int join_forks(ForkStage, ForkParticipant*) { return 0; }
void leave_forks(ForkParticipant*) {}

}  // namespace nupa::progress
