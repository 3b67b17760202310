// SPDX-License-Identifier: Apache-2.0
#include "base/memory_fault.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>

namespace nupa::base {

thread_local constinit GuardedAccess* volatile t_guarded_access = nullptr;

namespace {

constexpr size_t kKernelSetBytes = 8;
struct sigaction g_before[std::size(kFaultSignals)];

using SetAction = int (*)(int, const struct sigaction*, struct sigaction*);
/// The C library's own sigaction: libraries that report crashes replace it by functions that install nothing.
SetAction g_set = sigaction;

/// Acts as if no handler were installed: the kernel ends the process, at the faulting instruction itself if there is
/// one.
void end_by(int signal, const siginfo_t* info) {
  struct sigaction plain = {};
  plain.sa_handler = SIG_DFL;
  g_set(signal, &plain, nullptr);
  if (info->si_code <= 0) raise(signal);  // sent by kill() or the like; it is pending until the handler returns
}

void pass_on(int signal, siginfo_t* info, void* context) {
  struct sigaction& before = g_before[signal == SIGSEGV ? 0 : 1];
  const bool faulted = info->si_code > 0;
  const bool informed = (before.sa_flags & SA_SIGINFO) != 0;
  if (!informed && before.sa_handler == SIG_IGN && !faulted) return;
  if (!informed && (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN)) return end_by(signal, info);
  // Does for that handler what the kernel would have done.
  sigset_t mask = before.sa_mask;
  if ((before.sa_flags & SA_NODEFER) == 0) sigaddset(&mask, signal);
  sigset_t own;
  sigemptyset(&own);
  sigaddset(&own, signal);
  sigset_t inside;
  pthread_sigmask(SIG_UNBLOCK, &own, &inside);
  pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  const auto handler = before;
  if ((before.sa_flags & SA_RESETHAND) != 0) {
    before.sa_flags &= ~SA_SIGINFO;
    before.sa_handler = SIG_DFL;
  }
  if (informed)
    handler.sa_sigaction(signal, info, context);
  else
    handler.sa_handler(signal);
  pthread_sigmask(SIG_SETMASK, &inside, nullptr);
}

/// Memory of zero_after_fault(). `begin` is set last and cleared first.
struct ZeroedRange {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> has_faulted{false};
};
ZeroedRange g_zeroed[kMaxZeroedRanges];

ZeroedRange* zeroed_range_of(uintptr_t address) {
  for (ZeroedRange& range : g_zeroed)
    if (const uintptr_t begin = range.begin.load(); begin != 0 && address >= begin && address < range.end.load())
      return &range;
  return nullptr;
}

/// Only system calls that a signal handler may make.
bool put_zeros(uintptr_t address) {
  ZeroedRange* const range = zeroed_range_of(address);
  if (range == nullptr) return false;
  const int before = errno;
  constexpr uintptr_t kPageMask = 4095;
  constexpr int kFlags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const uintptr_t page = address & ~kPageMask;
  const long mapped = syscall(SYS_mmap, page, range->end.load() - page, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (mapped != -1 && !range->has_faulted.exchange(true)) {
    static constexpr char kText[] =
        "nupa: error: a shared file became shorter while it was in use; its memory is lost\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
  }
  errno = before;
  return mapped != -1;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  GuardedAccess* const guarded = t_guarded_access;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const bool is_guarded = guarded != nullptr && address >= guarded->begin && address < guarded->end;
  if (signal == SIGBUS && info->si_code > 0 && !is_guarded && put_zeros(address)) return;
  if (guarded == nullptr || info->si_code <= 0 || address < guarded->begin || address >= guarded->end) {
    const int error = errno;
    pass_on(signal, info, context);
    errno = error;
    return;
  }
  t_guarded_access = nullptr;
  // The kernel fills only the first part of the C library's signal set.
  sigemptyset(&guarded->mask);
  std::memcpy(&guarded->mask, &static_cast<const ucontext_t*>(context)->uc_sigmask, kKernelSetBytes);
  siglongjmp(guarded->back, 1);
}

SetAction find_set() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return sigaction;
#else
  void* const library = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  void* const found = library == nullptr ? nullptr : dlsym(library, "sigaction");
  return found == nullptr ? sigaction : reinterpret_cast<SetAction>(found);
#endif
}

}  // namespace

int watch_memory_faults() {
  static std::mutex mutex;
  static bool watched = false;
  std::lock_guard lock(mutex);
  if (watched) return 0;
  g_set = find_set();
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  // Uses the alternate signal stack of a thread that has one: a signal that is passed on may be a stack overflow.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  for (size_t i = 0; i < std::size(kFaultSignals); ++i) {
    if (g_set(kFaultSignals[i], nullptr, &g_before[i]) != 0) return errno;
    if (g_set(kFaultSignals[i], &action, nullptr) != 0) return errno;
  }
  watched = true;
  return 0;
}

int zero_after_fault(void* memory, size_t length) {
  if (const int error = watch_memory_faults(); error != 0) return error;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  for (ZeroedRange& range : g_zeroed) {
    if (range.begin.load() != 0) continue;
    range.has_faulted.store(false);
    range.end.store(reinterpret_cast<uintptr_t>(memory) + length);
    range.begin.store(reinterpret_cast<uintptr_t>(memory));
    return 0;
  }
  return ENOSPC;
}

bool has_zeros_after_fault(const void* memory) {
  const ZeroedRange* const range = zeroed_range_of(reinterpret_cast<uintptr_t>(memory));
  return range != nullptr && range->has_faulted.load();
}

void forget_zero_after_fault(const void* memory) {
  if (ZeroedRange* const range = zeroed_range_of(reinterpret_cast<uintptr_t>(memory)); range != nullptr)
    range->begin.store(0);
}

void leave_memory_fault(const GuardedAccess& access) { pthread_sigmask(SIG_SETMASK, &access.mask, nullptr); }

}  // namespace nupa::base
