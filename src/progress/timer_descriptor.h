// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/unique_fd.h"
#include <nupa/result.h>

namespace nupa::progress {

/// A descriptor that becomes readable at a point of CLOCK_MONOTONIC (a timerfd). Another thread may move that point
/// while a thread sleeps on the descriptor; that does not wake the sleeper. Any thread.
class TimerDescriptor {
 public:
  /// EMFILE, ENFILE, ENOMEM.
  Result<void> open();
  /// In a child of fork(): the descriptor is its parent's.
  void close() { fd_.reset(); }

  int fd() const { return fd_.get(); }
  /// Makes it readable at this time, and not before.
  void set(int64_t at_ns) const;
  /// Makes it not readable any more, if its time has come.
  void take() const;

 private:
  base::UniqueFd fd_;
};

}  // namespace nupa::progress
