#pragma once
#include <poll.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/fence.h"
#include "progress/deadline.h"
#include "progress/spin_lock.h"

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

/// What a thread sleeps on beside the descriptors of rsockets. One a thread.
class ThreadWaiter final : public Observer {
 public:
  static ThreadWaiter& mine();

  void changed() override;
  /// Forgets what was told; then the caller looks once more, then it sleeps.
  void reset();
  int fd() const { return fd_; }

  ThreadWaiter(const ThreadWaiter&) = delete;
  ThreadWaiter& operator=(const ThreadWaiter&) = delete;

 private:
  constexpr ThreadWaiter() = default;

  void open();
  void close();

  int fd_ = -1;
  int process_ = 0;  ///< a forked child must not share its parent's descriptor
  std::atomic<bool> told_{false};
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
