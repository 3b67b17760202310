// SPDX-License-Identifier: Apache-2.0
/// What AddressSanitizer needs around fork() in a process with several threads.
///
/// - Its allocator takes no lock around fork() (GCC 12). If another thread allocates at that moment, a lock stays
/// locked
///   in the child, which then blocks for ever. So fork() waits until the other threads sleep.
/// - The child has only the thread that forked. What the stacks and thread-local variables of the others refer to looks
///   like a leak there.
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "sanitizers.h"

namespace nupa::test {
namespace {

/// A thread that always runs, as some tests have, delays fork() so long. Then the child can block, with that
/// probability that it would have without the wait.
constexpr std::chrono::milliseconds kLimit{200};

bool g_beside_threads = false;  // at the last fork
bool g_of_threads = false;      // this process is a child of such a fork, or a child of such a child

/// True if the thread, which the folder names, runs (proc_pid_stat(5)).
bool runs(int folder, const char* thread) {
  char path[64] = {};
  strncat(strncat(path, thread, 32), "/stat", 8);
  char line[256] = {};
  const int file = openat(folder, path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;  // it has ended
  const ssize_t bytes = read(file, line, sizeof line - 1);
  close(file);
  const char* const name_end = bytes > 0 ? strrchr(line, ')') : nullptr;
  return name_end != nullptr && name_end[1] == ' ' && name_end[2] != 'S';
}

/// True if a thread of the process other than this one runs. False also if no descriptor is free.
bool others_run() {
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return false;
  bool found = false;
  while (const dirent* const thread = readdir(threads)) {
    if (thread->d_name[0] == '.' || atoi(thread->d_name) == gettid()) continue;
    found |= runs(dirfd(threads), thread->d_name);
  }
  closedir(threads);
  return found;
}

bool has_threads() {
  struct stat tasks {};
  constexpr nlink_t kOfFolder = 2;
  return stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink > kOfFolder + 1;
}

void await_sleeping_threads() {
  g_beside_threads = has_threads();
  const auto until = std::chrono::steady_clock::now() + kLimit;
  while (g_beside_threads && others_run() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // sleep: the pause between two looks
}

void be_child() { g_of_threads |= g_beside_threads; }

[[maybe_unused]] const bool g_asked =
    kAddressSanitizer && pthread_atfork(await_sleeping_threads, nullptr, be_child) == 0;

}  // namespace
}  // namespace nupa::test

/// The leak sanitizer asks it before it searches.
extern "C" [[gnu::visibility("default")]] int __lsan_is_turned_off() { return nupa::test::g_of_threads ? 1 : 0; }
