// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>

namespace nupa::progress {
class EventCatch;
}

namespace nupa::progress {

/// Looks for a transport's work in a thread of the program. Any thread.
class Poller {
 public:
  virtual ~Poller() = default;
  /// True if poll() may find something. An empty poll of a completion queue costs only this load.
  bool is_warm() const { return warm_.load(std::memory_order_relaxed); }
  /// For a thread that polled a completion queue and found nothing. Never waits.
  virtual void poll() = 0;
  /// For the thread that polled and turns to other work: does what the last poll left undone.
  virtual void finish_poll() = 0;
  /// The program armed a completion queue that has a channel: it will sleep.
  virtual void program_sleeps() = 0;
  enum class Slept : uint8_t {
    kReady,   ///< an event is there
    kSignal,  ///< a signal came whose handler ends a read()
    kCannot,  ///< the transport's own thread does the work now: the caller sleeps without it
  };
  /// Sleeps until an event of a completion queue is there for the thread, and does the transport's work meanwhile, so
  /// that no other thread has to be woken for it. Any thread, with no lock.
  virtual Slept sleep([[maybe_unused]] progress::EventCatch& events) { return Slept::kCannot; }

 protected:
  std::atomic<bool> warm_{false};
};

}  // namespace nupa::progress
