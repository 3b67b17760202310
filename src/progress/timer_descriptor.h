// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/unique_fd.h"
#include <nupa/result.h>

namespace nupa::progress {

/// A point of CLOCK_MONOTONIC at which a descriptor becomes readable (a timerfd). Another thread may move it while one
/// sleeps on the descriptor, which does not wake the sleeper. Any thread.
class TimerDescriptor {
 public:
  /// EMFILE, ENFILE, ENOMEM.
  Result<void> open();
  /// In a child: it is its parent's.
  void close() { fd_.reset(); }

  int fd() const { return fd_.get(); }
  /// From now on it is readable at this time, and not before.
  void set(int64_t at_ns) const;
  /// It is not readable any more, if its time has come.
  void take() const;

 private:
  base::UniqueFd fd_;
};

}  // namespace nupa::progress
