// SPDX-License-Identifier: Apache-2.0
#include "progress/timer_descriptor.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/system_error.h"
#include "progress/deadline.h"

namespace nupa::progress {

Result<void> TimerDescriptor::open() {
  fd_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!fd_) return base::fail_call(errno, "cannot create a timer descriptor");
  return {};
}

void TimerDescriptor::set(int64_t at_ns) const {
  const int64_t at = std::max<int64_t>(at_ns, 1);  // 0 would mean never
  const itimerspec when{{0, 0}, {at / kNsPerSecond, at % kNsPerSecond}};
  timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

void TimerDescriptor::take() const {
  uint64_t times;
  // The descriptor does not block. There is nothing to read if the time was moved meanwhile.
  [[maybe_unused]] const ssize_t got = ::read(fd_.get(), &times, sizeof times);
}

}  // namespace nupa::progress
