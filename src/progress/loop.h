// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/epoll.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "progress/clock.h"
#include "progress/deadline.h"
#include "progress/thread.h"
#include <nupa/export.h>
#include <nupa/result.h>

namespace nupa::progress {

/// The clock of a loop. The library has one; tests simulate others.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Any thread.
  virtual int64_t now_ns() const = 0;
};
/// CLOCK_MONOTONIC.
NUPA_EXPORT const Clock& system_clock();

/// An event loop: the descriptors, timers and tasks that one thread waits for. That thread runs their handlers one at a
/// time, and the loop holds no lock meanwhile. A handler may call all functions of the loop, and may destroy its own
/// watch or timer. Two handlers never run at once, so data that only handlers use needs no lock.
///
/// A turn: the thread sleeps until a descriptor is ready, a timer is due or a task was posted. Then it runs the
/// handlers of up to 64 descriptors, the tasks, and the due timers. A turn allocates nothing.
///
/// Watches and timers must be destroyed before their loop. In a forked child a loop belongs to the parent: its
/// descriptors are closed there, its calls do nothing (watch() and post() return ENODEV), and its destructors free
/// nothing.
class NUPA_EXPORT Loop {
  class Core;
  struct Item;

 public:
  /// EMFILE, ENFILE, ENOMEM. `clock` outlives the loop; deadlines and timers are in its time. A loop with a test's
  /// clock must not sleep: the test runs its turns (tests/support/loop_by_hand.h).
  static Result<std::unique_ptr<Loop>> open(const Clock& clock = system_clock());
  /// Calls stop() and waits for the thread of start(). Not in a handler. Tasks that have not started are dropped.
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// A descriptor that is watched until this object is destroyed.
  class NUPA_EXPORT Watch {
   public:
    /// The handler does not run after this: the destructor waits for it, unless the handler itself destroys the watch.
    /// The caller must not hold a lock that the handler takes.
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    /// Sets whether the handler is also called while the descriptor is writable. Any thread.
    void want_room(bool wanted);
    /// The handler is not called before `at_ns`, for events that it cannot handle now (EMFILE of accept()). Any thread.
    void pause_until(int64_t at_ns);

   private:
    friend class Loop;
    Watch(Core* core, Item* item) : core_(core), item_(item) {}
    Core* const core_;
    Item* const item_;
  };
  /// From now on the loop calls `ready` with EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLHUP and EPOLLERR bits while the
  /// descriptor is readable or at its end (level-triggered), perhaps before this call returns. Any thread. The
  /// descriptor must be closed after the watch. ENOMEM, ENOSPC (fs.epoll.max_user_watches), EEXIST (it is watched here
  /// already), EPERM (a file).
  Result<std::unique_ptr<Watch>> watch(int fd, std::function<void(uint32_t events)> ready);

  /// A timer that runs its handler once each time that it was set. It is a member of its user. Any thread may set and
  /// clear it. That allocates nothing, and makes a system call only if the loop would sleep longer.
  class NUPA_EXPORT Timer {
   public:
    /// `due` receives the time. Allocates memory.
    Timer(Loop& loop, std::function<void(int64_t now_ns)> due);
    /// The same rules as for ~Watch().
    ~Timer();
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;
    /// Replaces the time that was set before. INT64_MAX: as clear().
    void set(int64_t at_ns);
    /// As set(), but keeps an earlier time that is set already. A handler uses it after it has searched for its next
    /// deadline, so that a time which another thread has set meanwhile is not lost.
    void set_at_latest(int64_t at_ns);
    /// The handler starts once more after this call, soon.
    void run_soon() { set_at_latest(0); }
    /// Stops the timer. The handler may be running.
    void clear();

   private:
    Core* const core_;
    Item* const item_;
  };

  /// Runs `task` on the loop's thread; tasks run in the order in which they were posted. Any thread. ENOMEM.
  Result<void> post(std::function<void()> task);
  /// The same, and waits for the task's end. False: the task had not started by the deadline (of CLOCK_MONOTONIC) or by
  /// the end of run(), and never will; or there is no memory. On the loop's own thread it runs at once.
  bool call(const std::function<void()>& task, Deadline deadline);

  /// Starts a thread of the library that runs the loop. EAGAIN, ENOMEM.
  Result<void> start(ThreadName name);
  /// Runs the loop on the calling thread until stop(), for programs that own their thread.
  void run();
  /// run() returns after the current turn, now and in the future. Any thread, signal handlers.
  void stop();
  /// Waits until the thread of start() has ended. For owners whose handlers use their members. Not in a handler.
  void join();
  bool on_this_thread() const;

 private:
  friend class LoopByHand;
  bool run_once(Deadline deadline);
  int64_t next_due_ns() const;

  explicit Loop(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace nupa::progress
