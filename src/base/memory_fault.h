#pragma once
/// Access to memory of the program's that may be gone. An adapter pins what is registered and goes on after munmap();
/// here the access would end the process. Who reads or writes such memory on behalf of the wire does it under
/// try_access(), and gets an error to answer with.
#include <signal.h>

#include <csetjmp>
#include <cstddef>
#include <cstdint>

namespace nupa::base {

inline constexpr int kFaultSignals[] = {SIGSEGV, SIGBUS};

/// Takes SIGSEGV and SIGBUS of this process, once; what is not of try_access() is passed on to whoever had them before.
/// Any thread. An errno value.
int watch_memory_faults();

/// The access under way in one thread.
struct GuardedAccess {
  uintptr_t begin;  ///< the memory that may be gone
  uintptr_t end;
  sigset_t mask;  ///< set by the handler: the thread's signals that were blocked before
  sigjmp_buf back;
};

/// Null: none. Of the initial kind, for a handler must not allocate it.
extern thread_local constinit GuardedAccess* volatile t_guarded_access __attribute__((tls_model("initial-exec")));

/// What follows a fault: signals are let in again as they were.
void leave_memory_fault(const GuardedAccess& access);

/// Runs `access`, which touches [memory, memory + length) and must own nothing: it is left in the middle if that memory
/// is not there. False: it was. Not within another one. Before watch_memory_faults() the fault is the process's end.
template <class Access>
[[gnu::noinline]] bool try_access(const void* memory, size_t length, const Access& access) {
  GuardedAccess guarded;
  guarded.begin = reinterpret_cast<uintptr_t>(memory);
  guarded.end = guarded.begin + length;
  // Without the mask, which would be a system call each time.
  if (sigsetjmp(guarded.back, 0) != 0) {
    leave_memory_fault(guarded);
    return false;
  }
  t_guarded_access = &guarded;
  access();
  t_guarded_access = nullptr;
  return true;
}

/// Within try_access(), before an atomic operation on `word`: the thread sanitizer's atomics hold a lock of its own,
/// which must not be left, so the fault has to come before them.
inline void fault_before_atomic([[maybe_unused]] uint64_t* word) {
#if defined(__SANITIZE_THREAD__)
  asm volatile("lock orq $0, %0" : "+m"(*word));
#endif
}

}  // namespace nupa::base
