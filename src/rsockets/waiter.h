// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <poll.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/fence.h"
#include "progress/deadline.h"
#include "progress/spin_lock.h"
#include "progress/wake_up.h"

namespace nupa::rsockets {

/// Is notified when an rsocket changes. Any thread may call changed(), even with the rsocket's locks held, so changed()
/// must not call rsockets.
class Observer {
 public:
  virtual void changed() = 0;

 protected:
  ~Observer() = default;
};

/// The observers that sleep on one rsocket. Several may wait on the same descriptor, so a thread that takes an event
/// from it must notify the others.
///
/// Memory order, on any processor: a thread stores the change and then looks at `count_`. A sleeper stores `count_` and
/// then looks at the change. add() and notify() have a full barrier between the two. So the sleeper sees the change, or
/// notify() sees the sleeper.
class Observers {
 public:
  void add(Observer* observer);
  void remove(Observer* observer);
  /// Notifies all observers except one. Before the call, the change must be stored by a sequentially consistent store
  /// or update, or under a lock that a sleeper takes between add() and its last check.
  void notify(const Observer* except = nullptr) {
    base::fence_after_update();
    if (count_.load(std::memory_order_seq_cst) != 0) notify_observers(except);
  }

 private:
  void notify_observers(const Observer* except);

  std::atomic<uint32_t> count_{0};
  progress::SpinLock lock_;
  std::vector<Observer*> list_;
};

/// The calling thread, which sleeps on its wake-up and on the descriptors of rsockets. Lives on the stack for one
/// sleep.
class SleepingThread final : public Observer {
 public:
  void changed() override { wake_up_.signal(); }
  /// Clears earlier notifications. The caller then checks once more before it sleeps.
  void take() { wake_up_.take(); }
  int fd() const { return wake_up_.fd(); }

 private:
  progress::WakeUp& wake_up_ = progress::WakeUp::of_thread();
};

using progress::Deadline;

/// Limits a polling loop to the polling time. Each turn reads the clock.
class Spin {
 public:
  Spin();
  /// Returns false when it is time to sleep.
  bool again();

 private:
  progress::Deadline until_;
};

}  // namespace nupa::rsockets
