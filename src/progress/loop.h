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

/// The time of a loop. The library has one; tests have simulated ones.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Any thread.
  virtual int64_t now_ns() const = 0;
};
/// CLOCK_MONOTONIC.
NUPA_EXPORT const Clock& system_clock();

/// The descriptors, timers and tasks that one thread sleeps on. That thread runs their handlers one at a time, without
/// any lock of the loop: a handler may call all of this, and may destroy the watch or timer that it belongs to. Two
/// handlers never run at once, so what only handlers use needs no lock.
///
/// A turn: the thread sleeps until a descriptor is ready, a timer is due or a task was posted; then it runs the
/// handlers of up to 64 descriptors, the tasks, and the timers that are due. A turn allocates nothing.
///
/// Watches and timers are destroyed before their loop. In a forked child a loop is its parent's: its descriptors are
/// closed there, its calls do nothing (watch() and post() return ENODEV), and its destructors free nothing.
class NUPA_EXPORT Loop {
  class Core;
  struct Item;

 public:
  /// EMFILE, ENFILE, ENOMEM. `clock` outlives the loop. Deadlines and timers are in its time; a loop with a clock of a
  /// test is not slept on, but turned by hand (tests/support/loop_by_hand.h).
  static Result<std::unique_ptr<Loop>> open(const Clock& clock = system_clock());
  /// As stop(), and waits for the thread of start(). Not in a handler. Tasks that were not begun are dropped.
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// A descriptor that is watched, until this is destroyed.
  class NUPA_EXPORT Watch {
   public:
    /// After this the handler is not running: it waits for it, unless the handler itself destroys the watch. Not with
    /// anything locked that the handler locks.
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    /// Whether the handler is called also when there is room to write. Any thread.
    void want_room(bool wanted);
    /// The handler is not called before `at_ns`, for what it cannot take now (EMFILE of accept()). Any thread.
    void pause_until(int64_t at_ns);

   private:
    friend class Loop;
    Watch(Core* core, Item* item) : core_(core), item_(item) {}
    Core* const core_;
    Item* const item_;
  };
  /// From now on `ready` is called with EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLHUP and EPOLLERR bits while the descriptor
  /// is readable, or at its end (level-triggered), perhaps before this returns. Any thread. The descriptor is closed
  /// after the watch. ENOMEM, ENOSPC (fs.epoll.max_user_watches), EEXIST (it is watched here already), EPERM (a file).
  Result<std::unique_ptr<Watch>> watch(int fd, std::function<void(uint32_t events)> ready);

  /// A timer that runs its handler once each time that it was set. A member of its user; it may be set and cleared by
  /// any thread, which allocates nothing, and makes a system call only if the loop sleeps for longer.
  class NUPA_EXPORT Timer {
   public:
    /// `due` gets the time. Allocates.
    Timer(Loop& loop, std::function<void(int64_t now_ns)> due);
    /// As ~Watch().
    ~Timer();
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;
    /// Instead of what was set before. INT64_MAX: as clear().
    void set(int64_t at_ns);
    /// As set(), but what is set already stays if it is earlier. A handler that searches for its next deadline says it
    /// so: what another thread has set meanwhile is not lost.
    void set_at_latest(int64_t at_ns);
    /// The handler begins once more after this call, soon.
    void run_soon() { set_at_latest(0); }
    /// The handler may be running.
    void clear();

   private:
    Core* const core_;
    Item* const item_;
  };

  /// Runs `task` on the loop's thread; tasks run in the order in which they were posted. Any thread. ENOMEM.
  Result<void> post(std::function<void()> task);
  /// The same, and waits for its end. False: it was not begun by the deadline (of CLOCK_MONOTONIC) or by the end of
  /// run(), and never will be; or there is no memory. On the loop's own thread it runs at once.
  bool call(const std::function<void()>& task, Deadline deadline);

  /// Starts a thread of the library that runs the loop. EAGAIN, ENOMEM.
  Result<void> start(ThreadName name);
  /// Runs the loop on the calling thread until stop(), for programs that own their thread.
  void run();
  /// run() returns after the turn that is under way, now and in the future. Any thread, signal handlers.
  void stop();
  /// Waits until the thread of start() has ended, for owners whose handlers share their members. Not in a handler.
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
