// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Access to memory of the program that may be unmapped. An adapter pins registered memory and works on after munmap();
/// here the access would end the process. Code that reads or writes such memory for a peer therefore uses try_access(),
/// which returns an error that the peer can be answered with.
#include <signal.h>

#include <csetjmp>
#include <cstddef>
#include <cstdint>

namespace nupa::base {

inline constexpr int kFaultSignals[] = {SIGSEGV, SIGBUS};

/// Installs handlers for SIGSEGV and SIGBUS, once a process. Signals that try_access() did not cause are passed on to
/// the handlers that were installed before. Any thread. Returns 0 or an errno value.
int watch_memory_faults();

/// The access that a thread is executing.
struct GuardedAccess {
  uintptr_t begin;  ///< the memory that may be unmapped
  uintptr_t end;
  sigset_t mask;  ///< set by the handler: the thread's signals that were blocked before
  sigjmp_buf back;
};

/// Null: no access is being executed. TLS model initial-exec, because a signal handler must not allocate the variable.
extern thread_local constinit GuardedAccess* volatile t_guarded_access __attribute__((tls_model("initial-exec")));

/// Restores the thread's signal mask after a fault.
void leave_memory_fault(const GuardedAccess& access);

/// Runs `access`, which touches [memory, memory + length). A fault leaves `access` in the middle, so it must own
/// nothing. False: the memory is not there. Calls do not nest. Before watch_memory_faults() a fault ends the process.
template <class Access>
[[gnu::noinline]] bool try_access(const void* memory, size_t length, const Access& access) {
  GuardedAccess guarded;
  guarded.begin = reinterpret_cast<uintptr_t>(memory);
  guarded.end = guarded.begin + length;
  // The signal mask is not saved, because that would be a system call each time.
  if (sigsetjmp(guarded.back, 0) != 0) {
    leave_memory_fault(guarded);
    return false;
  }
  t_guarded_access = &guarded;
  access();
  t_guarded_access = nullptr;
  return true;
}

/// Memory of a file that another program can shorten: from now on a fault in it puts zeros there, up to its end, and
/// the access goes on. The first fault prints a line. Pages of [memory, memory + length). ENOSPC: there are
/// kMaxZeroedRanges. Otherwise the errors of watch_memory_faults(). Any thread.
inline constexpr size_t kMaxZeroedRanges = 32;
int zero_after_fault(void* memory, size_t length);
/// True if a fault has put zeros into that memory.
bool has_zeros_after_fault(const void* memory);
/// Call it before the memory is unmapped.
void forget_zero_after_fault(const void* memory);

}  // namespace nupa::base
