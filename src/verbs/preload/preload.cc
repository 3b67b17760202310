// SPDX-License-Identifier: Apache-2.0
/// Programs look into /sys/class/infiniband and /dev/infiniband before they open a device, and NUPA has no device of
/// the kernel. This library, preloaded (LD_PRELOAD, by `nupa run`), leads paths of these folders to a tree of files
/// that `nupa run` has written (docs/design/sysfs.md). All other paths go to libc unchanged.
///
/// The library also notifies NUPA, if the process uses it, of an _exit().
#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/next_function.h"

namespace {

template <class Function>
using Next = nupa::base::NextFunction<Function>;

/// Without a tree, this one file stands for all: UCX uses a device only if it may read and write it.
constexpr const char* kAskedByUcx = "/dev/infiniband/uverbs0";
constexpr const char* kTreeVariable = "NUPA_SYSFS";
/// The folders of which the tree has its own.
constexpr const char* kFolders[] = {"/sys/class/infiniband", "/sys/class/infiniband_verbs", "/sys/class/misc/rdma_cm",
                                    "/sys/devices/virtual/nupa", "/dev/infiniband"};

/// The path of the tree, and its length. Set before main(); empty: there is none.
char g_tree[PATH_MAX];
size_t g_tree_length = 0;

__attribute__((constructor)) void find_tree() {
  const char* const tree = std::getenv(kTreeVariable);
  const size_t length = tree == nullptr ? 0 : std::strlen(tree);
  if (length == 0 || length >= sizeof g_tree || tree[0] != '/') return;
  std::memcpy(g_tree, tree, length + 1);
  g_tree_length = length;
}

bool is_ours(const char* path) {
  for (const char* const folder : kFolders) {
    const size_t length = std::strlen(folder);
    if (std::strncmp(path, folder, length) == 0 && (path[length] == '\0' || path[length] == '/')) return true;
  }
  return false;
}

/// The path that libc gets in place of a given one. Async-signal-safe; takes PATH_MAX bytes of the stack.
class Redirected {
 public:
  explicit Redirected(const char* path) : path_(path) {
    // volatile: libc declares some of these paths as never null, but callers pass null anyway.
    const char* volatile given = path;
    if (given == nullptr || path[0] != '/' || !is_ours(path)) return;
    if (g_tree_length == 0) {
      if (std::strcmp(path, kAskedByUcx) == 0) path_ = "/dev/null";
      return;
    }
    const size_t length = std::strlen(path);
    if (g_tree_length + length >= sizeof place_) return;
    std::memcpy(place_, g_tree, g_tree_length);
    std::memcpy(place_ + g_tree_length, path, length + 1);
    path_ = place_;
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;
  const char* get() const { return path_; }

 protected:
  bool is_in_tree() const { return path_ == place_; }

 private:
  const char* path_;
  char place_[PATH_MAX];
};

/// The path of a file or folder that is about to be opened. Counters and addresses in the tree are brought up to date
/// first, by the library of the devices, if the process has it. Not async-signal-safe for those paths.
class Opened : public Redirected {
 public:
  explicit Opened(const char* path) : Redirected(path) {
    if (!is_in_tree() || !may_change(path)) return;
    using Refresh = int(const char* tree, const char* path);
    static std::atomic<Refresh*> refresh{nullptr};
    Refresh* call = refresh.load(std::memory_order_relaxed);
    const int error = errno;
    if (call == nullptr) {
      call = reinterpret_cast<Refresh*>(dlsym(RTLD_DEFAULT, "nupa_refresh_sysfs"));
      refresh.store(call, std::memory_order_relaxed);
    }
    // A failure leaves the files as they are.
    if (call != nullptr) call(g_tree, path);
    errno = error;
  }

 private:
  /// A guess, so that the library is not called for each path.
  static bool may_change(const char* path) {
    return std::strstr(path, "counters") != nullptr || std::strstr(path, "/gid") != nullptr;
  }
};

/// Takes the tree off the beginning of a path, so that programs see a path of sysfs.
void take_tree_off(char* path) {
  if (path == nullptr || g_tree_length == 0 || std::strncmp(path, g_tree, g_tree_length) != 0) return;
  if (path[g_tree_length] == '/') std::memmove(path, path + g_tree_length, std::strlen(path + g_tree_length) + 1);
}

mode_t mode_of(int flags, va_list rest) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0;
}

/// A path without symbolic links in `to`, which has room for PATH_MAX bytes, or in memory of malloc(3). As a program
/// sees it.
template <class Real>
char* resolve(Real& real, const char* path, char* to) {
  char* const resolved = real(Redirected(path).get(), to);
  take_tree_off(resolved);
  return resolved;
}

}  // namespace

// ---- the state of files ----

NUPA_SHOWN int stat(const char* path, struct stat* status) noexcept {
  static constinit Next<int(const char*, struct stat*)> next("stat");
  return next(Redirected(path).get(), status);
}
NUPA_SHOWN int stat64(const char* path, struct stat64* status) noexcept {
  static constinit Next<int(const char*, struct stat64*)> next("stat64");
  return next(Redirected(path).get(), status);
}
NUPA_SHOWN int lstat(const char* path, struct stat* status) noexcept {
  static constinit Next<int(const char*, struct stat*)> next("lstat");
  return next(Redirected(path).get(), status);
}
NUPA_SHOWN int lstat64(const char* path, struct stat64* status) noexcept {
  static constinit Next<int(const char*, struct stat64*)> next("lstat64");
  return next(Redirected(path).get(), status);
}
NUPA_SHOWN int fstatat(int folder, const char* path, struct stat* status, int flags) noexcept {
  static constinit Next<int(int, const char*, struct stat*, int)> next("fstatat");
  return next(folder, Redirected(path).get(), status, flags);
}
NUPA_SHOWN int fstatat64(int folder, const char* path, struct stat64* status, int flags) noexcept {
  static constinit Next<int(int, const char*, struct stat64*, int)> next("fstatat64");
  return next(folder, Redirected(path).get(), status, flags);
}
NUPA_SHOWN int statx(int folder, const char* path, int flags, unsigned mask, struct statx* status) noexcept {
  static constinit Next<int(int, const char*, int, unsigned, struct statx*)> next("statx");
  return next(folder, Redirected(path).get(), flags, mask, status);
}
// Programs built before glibc 2.33 call these functions.
NUPA_SHOWN int __xstat(int version, const char* path, struct stat* status) noexcept {
  static constinit Next<int(int, const char*, struct stat*)> next("__xstat");
  return next(version, Redirected(path).get(), status);
}
NUPA_SHOWN int __xstat64(int version, const char* path, struct stat64* status) noexcept {
  static constinit Next<int(int, const char*, struct stat64*)> next("__xstat64");
  return next(version, Redirected(path).get(), status);
}
NUPA_SHOWN int __lxstat(int version, const char* path, struct stat* status) noexcept {
  static constinit Next<int(int, const char*, struct stat*)> next("__lxstat");
  return next(version, Redirected(path).get(), status);
}
NUPA_SHOWN int __lxstat64(int version, const char* path, struct stat64* status) noexcept {
  static constinit Next<int(int, const char*, struct stat64*)> next("__lxstat64");
  return next(version, Redirected(path).get(), status);
}
NUPA_SHOWN int __fxstatat(int version, int folder, const char* path, struct stat* status, int flags) noexcept {
  static constinit Next<int(int, int, const char*, struct stat*, int)> next("__fxstatat");
  return next(version, folder, Redirected(path).get(), status, flags);
}
NUPA_SHOWN int __fxstatat64(int version, int folder, const char* path, struct stat64* status, int flags) noexcept {
  static constinit Next<int(int, int, const char*, struct stat64*, int)> next("__fxstatat64");
  return next(version, folder, Redirected(path).get(), status, flags);
}
NUPA_SHOWN int access(const char* path, int mode) noexcept {
  static constinit Next<int(const char*, int)> next("access");
  return next(Redirected(path).get(), mode);
}
NUPA_SHOWN int euidaccess(const char* path, int mode) noexcept {
  static constinit Next<int(const char*, int)> next("euidaccess");
  return next(Redirected(path).get(), mode);
}
NUPA_SHOWN int eaccess(const char* path, int mode) noexcept { return euidaccess(path, mode); }
NUPA_SHOWN int faccessat(int folder, const char* path, int mode, int flags) noexcept {
  static constinit Next<int(int, const char*, int, int)> next("faccessat");
  return next(folder, Redirected(path).get(), mode, flags);
}

// ---- opens ----

NUPA_SHOWN int open(const char* path, int flags, ...) {
  static constinit Next<int(const char*, int, ...)> next("open");
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return next(Opened(path).get(), flags, mode);
}
NUPA_SHOWN int open64(const char* path, int flags, ...) {
  static constinit Next<int(const char*, int, ...)> next("open64");
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return next(Opened(path).get(), flags, mode);
}
NUPA_SHOWN int openat(int folder, const char* path, int flags, ...) {
  static constinit Next<int(int, const char*, int, ...)> next("openat");
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return next(folder, Opened(path).get(), flags, mode);
}
NUPA_SHOWN int openat64(int folder, const char* path, int flags, ...) {
  static constinit Next<int(int, const char*, int, ...)> next("openat64");
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return next(folder, Opened(path).get(), flags, mode);
}
// Programs built with -D_FORTIFY_SOURCE call these functions.
NUPA_SHOWN int __open_2(const char* path, int flags) {
  static constinit Next<int(const char*, int)> next("__open_2");
  return next(Opened(path).get(), flags);
}
NUPA_SHOWN int __open64_2(const char* path, int flags) {
  static constinit Next<int(const char*, int)> next("__open64_2");
  return next(Opened(path).get(), flags);
}
NUPA_SHOWN int __openat_2(int folder, const char* path, int flags) {
  static constinit Next<int(int, const char*, int)> next("__openat_2");
  return next(folder, Opened(path).get(), flags);
}
NUPA_SHOWN int __openat64_2(int folder, const char* path, int flags) {
  static constinit Next<int(int, const char*, int)> next("__openat64_2");
  return next(folder, Opened(path).get(), flags);
}
NUPA_SHOWN FILE* fopen(const char* path, const char* mode) {
  static constinit Next<FILE*(const char*, const char*)> next("fopen");
  return next(Opened(path).get(), mode);
}
NUPA_SHOWN FILE* fopen64(const char* path, const char* mode) {
  static constinit Next<FILE*(const char*, const char*)> next("fopen64");
  return next(Opened(path).get(), mode);
}

// ---- folders ----

NUPA_SHOWN DIR* opendir(const char* path) {
  static constinit Next<DIR*(const char*)> next("opendir");
  return next(Opened(path).get());
}
NUPA_SHOWN int scandir(const char* path, struct dirent*** entries, int (*takes)(const struct dirent*),
                       int (*compare)(const struct dirent**, const struct dirent**)) {
  static constinit Next<int(const char*, struct dirent***, int (*)(const struct dirent*),
                            int (*)(const struct dirent**, const struct dirent**))>
      next("scandir");
  return next(Opened(path).get(), entries, takes, compare);
}
NUPA_SHOWN int scandir64(const char* path, struct dirent64*** entries, int (*takes)(const struct dirent64*),
                         int (*compare)(const struct dirent64**, const struct dirent64**)) {
  static constinit Next<int(const char*, struct dirent64***, int (*)(const struct dirent64*),
                            int (*)(const struct dirent64**, const struct dirent64**))>
      next("scandir64");
  return next(Opened(path).get(), entries, takes, compare);
}
NUPA_SHOWN int chdir(const char* path) noexcept {
  static constinit Next<int(const char*)> next("chdir");
  return next(Opened(path).get());
}

// glob(3) opens folders by functions of libc that no library replaces, unless the caller gives it others.

namespace {

/// Sets the functions that glob calls to read folders.
template <class Results, class Entry, class Status>
void read_by_these(Results* results, DIR* (*open_folder)(const char*), Entry* (*read)(DIR*),
                   int (*get)(const char*, Status*), int (*get_link)(const char*, Status*)) {
  results->gl_opendir = reinterpret_cast<void* (*)(const char*)>(open_folder);
  results->gl_readdir = reinterpret_cast<Entry* (*)(void*)>(read);
  results->gl_closedir = [](void* folder) { closedir(static_cast<DIR*>(folder)); };
  results->gl_stat = get;
  results->gl_lstat = get_link;
}

/// True if libc's own functions would miss files of the pattern.
bool needs_these(const char* pattern, int flags) {
  return g_tree_length != 0 && (flags & GLOB_ALTDIRFUNC) == 0 && is_ours(pattern);
}

}  // namespace

NUPA_SHOWN int glob(const char* pattern, int flags, int (*failed)(const char*, int), glob_t* results) noexcept(false) {
  static constinit Next<int(const char*, int, int (*)(const char*, int), glob_t*)> next("glob");
  if (!needs_these(pattern, flags)) return next(pattern, flags, failed, results);
  read_by_these(results, &opendir, &readdir, &stat, &lstat);
  const int status = next(pattern, flags | GLOB_ALTDIRFUNC, failed, results);
  results->gl_flags &= ~GLOB_ALTDIRFUNC;
  return status;
}
NUPA_SHOWN int glob64(const char* pattern, int flags, int (*failed)(const char*, int),
                      glob64_t* results) noexcept(false) {
  static constinit Next<int(const char*, int, int (*)(const char*, int), glob64_t*)> next("glob64");
  if (!needs_these(pattern, flags)) return next(pattern, flags, failed, results);
  read_by_these(results, &opendir, &readdir64, &stat64, &lstat64);
  const int status = next(pattern, flags | GLOB_ALTDIRFUNC, failed, results);
  results->gl_flags &= ~GLOB_ALTDIRFUNC;
  return status;
}

// ---- links ----

NUPA_SHOWN ssize_t readlink(const char* path, char* target, size_t size) noexcept {
  static constinit Next<ssize_t(const char*, char*, size_t)> next("readlink");
  return next(Redirected(path).get(), target, size);
}
NUPA_SHOWN ssize_t readlinkat(int folder, const char* path, char* target, size_t size) noexcept {
  static constinit Next<ssize_t(int, const char*, char*, size_t)> next("readlinkat");
  return next(folder, Redirected(path).get(), target, size);
}
NUPA_SHOWN ssize_t __readlink_chk(const char* path, char* target, size_t size, size_t room) {
  static constinit Next<ssize_t(const char*, char*, size_t, size_t)> next("__readlink_chk");
  return next(Redirected(path).get(), target, size, room);
}
NUPA_SHOWN ssize_t __readlinkat_chk(int folder, const char* path, char* target, size_t size, size_t room) {
  static constinit Next<ssize_t(int, const char*, char*, size_t, size_t)> next("__readlinkat_chk");
  return next(folder, Redirected(path).get(), target, size, room);
}
NUPA_SHOWN char* realpath(const char* path, char* resolved) noexcept {
  static constinit Next<char*(const char*, char*)> next("realpath");
  return resolve(next, path, resolved);
}
NUPA_SHOWN char* __realpath_chk(const char* path, char* resolved, size_t room) {
  static constinit Next<char*(const char*, char*, size_t)> next("__realpath_chk");
  const auto with_room = [&](const char* from, char* to) { return next(from, to, room); };
  return resolve(with_room, path, resolved);
}
NUPA_SHOWN char* canonicalize_file_name(const char* path) noexcept {
  static constinit Next<char*(const char*)> next("canonicalize_file_name");
  const auto allocated = [&](const char* from, char*) { return next(from); };
  return resolve(allocated, path, nullptr);
}

// ---- the end of the process ----

/// Set by NUPA; async-signal-safe.
extern "C" {
__attribute__((visibility("default"))) constinit std::atomic<void (*)()> nupa_before_exit{nullptr};
}

NUPA_SHOWN [[noreturn]] void _exit(int status) {
  if (void (*before)() = nupa_before_exit.load(std::memory_order_acquire); before != nullptr) before();
  for (;;) syscall(SYS_exit_group, status);
}

NUPA_SHOWN [[noreturn]] void _Exit(int status) noexcept { _exit(status); }
