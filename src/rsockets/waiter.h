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

/// Whoever sleeps until an rsocket changes. changed() may be called by any thread, with the rsocket's locks held: it
/// calls nothing of rsockets.
class Observer {
 public:
  virtual void changed() = 0;

 protected:
  ~Observer() = default;
};

/// Those who sleep on one rsocket. Each may wait on the same descriptors, so whoever takes an event off one has to tell
/// the others.
class Observers {
 public:
  void add(Observer* observer);
  void remove(Observer* observer);
  /// Tells all but one. The change is stored before by a sequentially consistent store, or before such an update, or
  /// under a lock that a sleeper takes between add() and its last look.
  void notify(const Observer* except = nullptr) {
    base::fence_after_update();
    if (count_.load(std::memory_order_seq_cst) != 0) tell(except);
  }

 private:
  void tell(const Observer* except);

  std::atomic<uint32_t> count_{0};
  progress::SpinLock lock_;
  std::vector<Observer*> list_;
};

/// The calling thread, which sleeps on its wake-up beside the descriptors of rsockets. On the stack of one sleep.
class SleepingThread final : public Observer {
 public:
  void changed() override { wake_up_.signal(); }
  /// Forgets what was told; then the caller looks once more, then it sleeps.
  void take() { wake_up_.take(); }
  int fd() const { return wake_up_.fd(); }

 private:
  progress::WakeUp& wake_up_ = progress::WakeUp::of_thread();
};

using progress::Deadline;

/// Turns until the polling time is over. The clock is read at each of them.
class Spin {
 public:
  Spin();
  /// False: time to sleep.
  bool again();

 private:
  progress::Deadline until_;
};

}  // namespace nupa::rsockets
