// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <functional>
#include <cstdint>

#include "progress/deadline.h"
#include <nupa/export.h>

namespace nupa::progress {

// fork().

/// Counts the forks between the first process and this one. One load. Any thread, signal handlers too.
NUPA_EXPORT uint32_t process_generation();

/// Of an object: whether this process made it. In a forked child it is false of all that is inherited.
class OfThisProcess {
 public:
  bool holds() const { return made_ == process_generation(); }

 private:
  uint32_t made_ = process_generation();
};

/// Before a fork in this order, in the child too; in the parent in reverse. So nothing else of the library is locked
/// while fork() waits for memory to stand still, or for a child to copy; and a child has pages of its own before
/// anything writes to them. kEvents: of rdmacm. kDescriptors: leaf locks.
enum class ForkStage : uint8_t { kMemory, kPackets, kHost, kEvents, kDescriptors };

class ForkParticipant {
 public:
  virtual ~ForkParticipant() = default;
  /// Takes locks. May wait for what is under way, milliseconds.
  virtual void before_fork() = 0;
  virtual void in_parent() = 0;
  /// The child's only thread. Async-signal-safe: frees nothing, waits for nothing. Whether the child has the
  /// participant too, for its own forks; false: it is its parent's.
  virtual bool in_child() = 0;
};

/// From now on fork() minds the participant; those of one stage in the order in which they joined. ENOMEM. Any thread
/// without locks that participants take.
NUPA_EXPORT int join_forks(ForkStage stage, ForkParticipant* participant);
/// Nothing where it has not joined.
NUPA_EXPORT void leave_forks(ForkParticipant* participant);

/// A descriptor that a forked child must not keep: it would hold a name or a port whose owner is gone. The child's copy
/// is closed as it starts. A leaf lock. Any thread.
NUPA_EXPORT void close_in_children(int fd);
/// The same for a descriptor that `make` opens (-1: it could not), which this returns: no fork comes between the two.
/// `make` returns soon and takes no lock.
NUPA_EXPORT int open_for_parent(const std::function<int()>& make);
/// Before the descriptor is closed.
NUPA_EXPORT void forget_for_children(int fd);
/// The same for as long as it lives.
class ParentOnly {
 public:
  explicit ParentOnly(int fd) : fd_(fd) { close_in_children(fd); }
  ~ParentOnly() { forget_for_children(fd_); }
  ParentOnly(const ParentOnly&) = delete;
  ParentOnly& operator=(const ParentOnly&) = delete;

 private:
  int fd_;
};

/// Memory that is shared with other processes, mapped at `at` (whole pages). A forked child has private zeros there
/// instead: what it writes by an object of its parent reaches nobody, and a queue pair that it looks at is in RESET. A
/// leaf lock. Any thread.
NUPA_EXPORT void blank_in_children(void* at, size_t length);
/// Before the memory is unmapped. Nothing where it is not known, in a child for instance.
NUPA_EXPORT void forget_mapping_for_children(void* at);

// exit(). A program may call it in a signal handler, and the interrupted code may hold any lock, of the library or of
// malloc. The exiting thread therefore takes no lock and allocates nothing: it wakes a thread, "nupa-exit", which does
// what is left to do, and waits for it with a limit.

/// In this order: what was received is acknowledged before connections end, and peers learn of the end after that.
enum class ExitStage : uint8_t { kStreams, kPackets, kConnections, kHost, kTraces, kLauncher };

struct ExitAction {
  /// On a thread of the library. If it waits for a lock that the interrupted code holds, the actions after it run
  /// kActionNs later, and the process ends without it.
  void (*run)(void* object);
  void* object;
  /// In the exiting thread, before all others: takes no lock, allocates nothing, waits for nothing. May be null.
  void (*at_once)(void* object) = nullptr;
};

/// How long the end of the process waits for an action that has not put it off.
inline constexpr int64_t kActionNs = 250 * kNsPerMs;

/// Has the action run once when the process ends: by exit(), or by run_exit_actions() before. A forked child has none
/// of its parent's. 0; ENOMEM: 64 a stage; EAGAIN: no thread. Any thread.
NUPA_EXPORT int at_exit(ExitStage stage, const ExitAction& action);
/// The object goes. An action of it that runs at this moment is waited for, a second at most. Any thread.
NUPA_EXPORT void forget_at_exit(void* object);
/// Runs the actions now, as exit() does: for _exit() behind the preload library. Once; later calls return at once. Any
/// thread, signal handlers.
NUPA_EXPORT void run_exit_actions();
/// For actions: this one may last until then, since it waits for something that is expected to come. `until` is
/// kActionNs after the end of that wait: the actions after it run then, whether this one is through or not.
NUPA_EXPORT void put_off_exit(Deadline until);

}  // namespace nupa::progress
