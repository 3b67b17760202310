// SPDX-License-Identifier: Apache-2.0
/// A child of a process with several threads has only the one that forked: what the others' stacks and thread-local
/// variables refer to looks like a leak there.
#include <pthread.h>
#include <sys/stat.h>

#include "sanitizers.h"

namespace nupa::test {
namespace {

bool g_beside_threads = false;  // at the last fork
bool g_of_threads = false;      // this process is a child of such a fork, or a child of such a child

/// Without allocations: a fork may come at any moment.
void look_for_threads() {
  struct stat tasks {};
  constexpr nlink_t kOfFolder = 2;
  g_beside_threads = stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink > kOfFolder + 1;
}

void be_child() { g_of_threads |= g_beside_threads; }

[[maybe_unused]] const bool g_asked = kAddressSanitizer && pthread_atfork(look_for_threads, nullptr, be_child) == 0;

}  // namespace
}  // namespace nupa::test

/// The leak sanitizer asks it before it searches.
extern "C" [[gnu::visibility("default")]] int __lsan_is_turned_off() { return nupa::test::g_of_threads ? 1 : 0; }
