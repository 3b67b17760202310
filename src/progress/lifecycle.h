// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <functional>
#include <cstdint>

#include "progress/deadline.h"
#include <nupa/export.h>

namespace nupa::progress {

// fork().

/// The number of forks between the first process and this one. One load. Any thread, signal handlers too.
NUPA_EXPORT uint32_t process_generation();

/// A member that records whether this process made its object. In a forked child it is false for all inherited objects.
class OfThisProcess {
 public:
  bool holds() const { return made_ == process_generation(); }

 private:
  uint32_t made_ = process_generation();
};

/// The stages of fork(): they run in this order before a fork and in the child, and in reverse in the parent. So no
/// other lock of the library is held while fork() waits for memory to be quiet, or for a child to copy it. And a child
/// has its own pages before any code writes to them. kEvents: for rdmacm. kDescriptors: leaf locks.
enum class ForkStage : uint8_t { kMemory, kPackets, kHost, kEvents, kDescriptors };

class ForkParticipant {
 public:
  virtual ~ForkParticipant() = default;
  /// Takes locks. May wait milliseconds for calls in progress.
  virtual void before_fork() = 0;
  virtual void in_parent() = 0;
  /// Runs in the child's only thread. Async-signal-safe: frees nothing, waits for nothing. True: the child keeps the
  /// participant for its own forks. False: it belongs to the parent.
  virtual bool in_child() = 0;
};

/// Registers a participant for later forks. Participants of one stage run in the order in which they joined. ENOMEM.
/// Any thread that holds no lock which participants take.
NUPA_EXPORT int join_forks(ForkStage stage, ForkParticipant* participant);
/// Does nothing if it has not joined.
NUPA_EXPORT void leave_forks(ForkParticipant* participant);

/// Marks a descriptor that a forked child must not keep: the child would hold a name or a port after its owner's death.
/// The child's copy is closed as it starts. Takes a leaf lock. Any thread.
NUPA_EXPORT void close_in_children(int fd);
/// The same for a descriptor that `make` opens (-1: it failed), which this returns. No fork can come between the two.
/// `make` returns soon and takes no lock.
NUPA_EXPORT int open_for_parent(const std::function<int()>& make);
/// Call it before the descriptor is closed.
NUPA_EXPORT void forget_for_children(int fd);
/// The same during the object's lifetime.
class ParentOnly {
 public:
  explicit ParentOnly(int fd) : fd_(fd) { close_in_children(fd); }
  ~ParentOnly() { forget_for_children(fd_); }
  ParentOnly(const ParentOnly&) = delete;
  ParentOnly& operator=(const ParentOnly&) = delete;

 private:
  int fd_;
};

/// Marks memory that is shared with other processes and mapped at `at` (whole pages). A forked child has private zeros
/// there instead: its writes by an object of its parent reach no process, and it reads state RESET for a queue pair.
/// Takes a leaf lock. Any thread.
NUPA_EXPORT void blank_in_children(void* at, size_t length);
/// Call it before the memory is unmapped. Does nothing if the memory is not marked, for instance in a child.
NUPA_EXPORT void forget_mapping_for_children(void* at);

// exit(). A program may call it in a signal handler, and the interrupted code may hold any lock, of the library or of
// malloc. So the exiting thread takes no lock and allocates nothing: it wakes the thread "nupa-exit", which runs the
// exit actions, and waits for it with a limit.

/// The stages of exit(), in this order: received data is acknowledged before connections end, and peers are notified of
/// the exit after that.
enum class ExitStage : uint8_t { kStreams, kPackets, kConnections, kHost, kTraces, kLauncher };

struct ExitAction {
  /// Runs on a thread of the library. If it waits for a lock that the interrupted code holds, the actions after it run
  /// kActionNs later, and the process ends without it.
  void (*run)(void* object);
  void* object;
  /// Runs in the exiting thread before all actions: takes no lock, allocates nothing, waits for nothing. May be null.
  void (*at_once)(void* object) = nullptr;
};

/// How long the process's exit waits for an action that has not put it off.
inline constexpr int64_t kActionNs = 250 * kNsPerMs;

/// Registers an action that runs once when the process ends: by exit(), or before by run_exit_actions(). A forked child
/// has no actions of its parent. Returns 0; ENOMEM: there are 64 in the stage; EAGAIN: no thread. Any thread.
NUPA_EXPORT int at_exit(ExitStage stage, const ExitAction& action);
/// Removes the object's actions before the object is destroyed. Waits for an action that runs now, a second at most.
/// Any thread.
NUPA_EXPORT void forget_at_exit(void* object);
/// Runs the actions now, as exit() does: for _exit() in the preload library. Runs them once; later calls return at
/// once. Any thread, signal handlers.
NUPA_EXPORT void run_exit_actions();
/// For actions: the running one may last longer, because it waits for an expected event. `until` is kActionNs after the
/// end of that wait. The actions after it run then, whether or not this one has returned.
NUPA_EXPORT void put_off_exit(Deadline until);

}  // namespace nupa::progress
