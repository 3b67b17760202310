// SPDX-License-Identifier: Apache-2.0
/// UCX uses a verbs device only if it may read and write a character device /dev/infiniband/uverbs0. NUPA has no such
/// device, and an ordinary user cannot make one. This library, preloaded (LD_PRELOAD, by `nupa run`), answers calls for
/// that one path as for /dev/null: the calls only check whether this user may open it. Calls for every other path go to
/// libc unchanged.
///
/// The library also notifies NUPA, if the process uses it, of an _exit().
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>

#define NUPA_SHOWN extern "C" __attribute__((visibility("default")))

namespace {

constexpr const char* kAsked = "/dev/infiniband/uverbs0";
constexpr const char* kStandIn = "/dev/null";

const char* redirect(const char* path) {
  // volatile: libc declares some of these paths as never null, but callers pass null anyway.
  const char* volatile given = path;
  return given != nullptr && std::strcmp(path, kAsked) == 0 ? kStandIn : path;
}

/// libc's function of a name, looked up once. Atomic and without a lock, since programs open files in signal handlers
/// and between fork and exec.
template <class Function>
class Next {
 public:
  explicit constexpr Next(const char* name) : name_(name) {}

  /// Returns the result of the function; fails with ENOSYS if this libc has no function of that name.
  template <class... Arguments>
  int operator()(Arguments... arguments) {
    Function* real = real_.load(std::memory_order_relaxed);
    if (real == nullptr) {
      real = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name_));
      real_.store(real, std::memory_order_relaxed);
    }
    if (real != nullptr) return real(arguments...);
    errno = ENOSYS;
    return -1;
  }

 private:
  const char* name_;
  std::atomic<Function*> real_{nullptr};
};

constinit Next<int(const char*, struct stat*)> next_stat("stat");
constinit Next<int(const char*, struct stat64*)> next_stat64("stat64");
constinit Next<int(int, const char*, struct stat*, int)> next_fstatat("fstatat");
constinit Next<int(int, const char*, struct stat64*, int)> next_fstatat64("fstatat64");
constinit Next<int(int, const char*, struct stat*)> next_xstat("__xstat");
constinit Next<int(int, const char*, struct stat64*)> next_xstat64("__xstat64");
constinit Next<int(const char*, int)> next_access("access");
constinit Next<int(int, const char*, int, int)> next_faccessat("faccessat");
constinit Next<int(const char*, int, ...)> next_open("open");
constinit Next<int(const char*, int, ...)> next_open64("open64");

mode_t mode_of(int flags, va_list rest) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0;
}

}  // namespace

NUPA_SHOWN int stat(const char* path, struct stat* status) noexcept { return next_stat(redirect(path), status); }

NUPA_SHOWN int stat64(const char* path, struct stat64* status) noexcept { return next_stat64(redirect(path), status); }

NUPA_SHOWN int fstatat(int folder, const char* path, struct stat* status, int flags) noexcept {
  return next_fstatat(folder, redirect(path), status, flags);
}

NUPA_SHOWN int fstatat64(int folder, const char* path, struct stat64* status, int flags) noexcept {
  return next_fstatat64(folder, redirect(path), status, flags);
}

// Programs built before glibc 2.33 call these two functions.
NUPA_SHOWN int __xstat(int version, const char* path, struct stat* status) noexcept {
  return next_xstat(version, redirect(path), status);
}

NUPA_SHOWN int __xstat64(int version, const char* path, struct stat64* status) noexcept {
  return next_xstat64(version, redirect(path), status);
}

NUPA_SHOWN int access(const char* path, int mode) noexcept { return next_access(redirect(path), mode); }

NUPA_SHOWN int faccessat(int folder, const char* path, int mode, int flags) noexcept {
  return next_faccessat(folder, redirect(path), mode, flags);
}

NUPA_SHOWN int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return next_open(redirect(path), flags, mode);
}

NUPA_SHOWN int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return next_open64(redirect(path), flags, mode);
}

/// Set by NUPA; async-signal-safe.
extern "C" {
__attribute__((visibility("default"))) constinit std::atomic<void (*)()> nupa_before_exit{nullptr};
}

NUPA_SHOWN [[noreturn]] void _exit(int status) {
  if (void (*before)() = nupa_before_exit.load(std::memory_order_acquire); before != nullptr) before();
  for (;;) syscall(SYS_exit_group, status);
}

NUPA_SHOWN [[noreturn]] void _Exit(int status) noexcept { _exit(status); }
