// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>

namespace nupa::core {

/// Looks for a transport's work in a thread of the program. Any thread.
class Poller {
 public:
  virtual ~Poller() = default;
  /// Whether poll() may find something: an empty poll of a completion queue costs this load alone.
  bool is_warm() const { return warm_.load(std::memory_order_relaxed); }
  /// A thread polls and found nothing. Never waits.
  virtual void poll() = 0;
  /// The thread that polled turns to something long: what the last poll left undone is done now.
  virtual void finish_poll() = 0;
  /// The program armed a completion queue with a channel: it will sleep.
  virtual void program_sleeps() = 0;

 protected:
  std::atomic<bool> warm_{false};
};

}  // namespace nupa::core
