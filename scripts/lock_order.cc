// SPDX-License-Identifier: Apache-2.0
/// Records in which order threads take locks; scripts/lock-order preloads it. It replaces the C library's functions for
/// mutexes and read-write locks. When a thread takes a lock while it holds others, it writes one line with both places
/// of code to LOCK_ORDER_PIPE, once for each pair of places in a process. Each line is written immediately, so that it
/// remains when the process is killed.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

struct Held {
  const void* lock;
  const void* place;  ///< the call's return address
  uint32_t times;     ///< above 1 for a recursive mutex or a repeated read lock
};
constexpr size_t kMostHeld = 64;
struct ThisThread {
  std::array<Held, kMostHeld> held;
  size_t count;
};
constinit thread_local ThisThread t_me [[gnu::tls_model("initial-exec")]]{};

/// The pairs that were written, as a hash table without deletion. fork() copies it.
constexpr size_t kPlaces = 1 << 16;
std::array<std::atomic<uint64_t>, kPlaces> g_written;

uint64_t key_of(const void* outer, const void* inner, bool tries) {
  uint64_t key = reinterpret_cast<uint64_t>(outer) * 0x9e3779b97f4a7c15;
  key = (key ^ key >> 29) + reinterpret_cast<uint64_t>(inner) * 2 + (tries ? 1 : 0);
  key *= 0xbf58476d1ce4e5b9;
  return (key ^ key >> 32) | 1;  // 0 marks a free entry
}

bool is_new(uint64_t key) {
  for (size_t looked = 0; looked < kPlaces; ++looked) {
    std::atomic<uint64_t>& place = g_written[(key + looked) % kPlaces];
    uint64_t found = 0;
    if (place.compare_exchange_strong(found, key)) return true;
    if (found == key) return false;
  }
  return false;
}

int print(char* out, size_t room, const void* place) {
  Dl_info info{};
  // The return address minus one lies in the call itself, which may be the last instruction of its function.
  const char* call = static_cast<const char*>(place) - 1;
  if (dladdr(call, &info) == 0 || info.dli_fname == nullptr) return snprintf(out, room, "? 0");
  return snprintf(out, room, "%s %#lx", info.dli_fname,
                  static_cast<unsigned long>(call - static_cast<const char*>(info.dli_fbase)));
}

void write_pair(const void* outer, const void* inner, bool tries) {
  static const char* const pipe = getenv("LOCK_ORDER_PIPE");
  const int fd = pipe == nullptr ? -1 : open(pipe, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  char line[2048];  // shorter than PIPE_BUF, so that lines of several processes do not mix
  char first[900];
  char second[900];
  print(first, sizeof first, outer);
  print(second, sizeof second, inner);
  const int length = snprintf(line, sizeof line, "%s %s %s\n", tries ? "try" : "lock", first, second);
  [[maybe_unused]] const ssize_t written = write(fd, line, static_cast<size_t>(length));
  close(fd);
}

void note(const void* lock, const void* place, bool tries) {
  const int error = errno;
  for (size_t i = 0; i < t_me.count; ++i)
    if (const Held& outer = t_me.held[i]; outer.lock != lock && is_new(key_of(outer.place, place, tries)))
      write_pair(outer.place, place, tries);
  errno = error;
}

void took(const void* lock, const void* place) {
  for (size_t i = 0; i < t_me.count; ++i)
    if (t_me.held[i].lock == lock) {
      ++t_me.held[i].times;
      return;
    }
  if (t_me.count < kMostHeld) t_me.held[t_me.count++] = {lock, place, 1};
}

void gave_back(const void* lock) {
  for (size_t i = t_me.count; i-- > 0;) {
    if (t_me.held[i].lock != lock) continue;
    if (--t_me.held[i].times > 0) return;
    for (--t_me.count; i < t_me.count; ++i) t_me.held[i] = t_me.held[i + 1];
    return;
  }
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// Records the pair before it waits, so that a deadlock is recorded as well.
template <class Lock>
int take(int (*real)(Lock*), Lock* lock, const void* place) {
  note(lock, place, false);
  const int error = real(lock);
  if (error == 0) took(lock, place);
  return error;
}
template <class Lock>
int try_to_take(int (*real)(Lock*), Lock* lock, const void* place) {
  const int error = real(lock);
  if (error != 0) return error;
  note(lock, place, true);
  took(lock, place);
  return 0;
}
template <class Lock>
int give_back(int (*real)(Lock*), Lock* lock) {
  gave_back(lock);
  return real(lock);
}

}  // namespace

// NOLINTBEGIN(bugprone-macro-parentheses): names and types
#define STAND_IN(name, Lock, way)                                                       \
  extern "C" int name(Lock* lock) noexcept {                                            \
    static int (*const real)(Lock*) = next<int(Lock*)>(#name);                          \
    return way(real, lock, __builtin_extract_return_addr(__builtin_return_address(0))); \
  }
#define STAND_IN_OF_UNLOCK(name, Lock)                         \
  extern "C" int name(Lock* lock) noexcept {                   \
    static int (*const real)(Lock*) = next<int(Lock*)>(#name); \
    return give_back(real, lock);                              \
  }
// NOLINTEND(bugprone-macro-parentheses)

STAND_IN(pthread_mutex_lock, pthread_mutex_t, take)
STAND_IN(pthread_mutex_trylock, pthread_mutex_t, try_to_take)
STAND_IN_OF_UNLOCK(pthread_mutex_unlock, pthread_mutex_t)
STAND_IN(pthread_rwlock_rdlock, pthread_rwlock_t, take)
STAND_IN(pthread_rwlock_wrlock, pthread_rwlock_t, take)
STAND_IN(pthread_rwlock_tryrdlock, pthread_rwlock_t, try_to_take)
STAND_IN(pthread_rwlock_trywrlock, pthread_rwlock_t, try_to_take)
STAND_IN_OF_UNLOCK(pthread_rwlock_unlock, pthread_rwlock_t)

/// A child reinitializes the locks that other threads of its parent may hold, so the record of held locks is cleared.
extern "C" pid_t fork() noexcept {
  static pid_t (*const real)() = next<pid_t()>("fork");
  const pid_t child = real();
  if (child == 0) t_me.count = 0;
  return child;
}
