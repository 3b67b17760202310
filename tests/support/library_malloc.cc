// SPDX-License-Identifier: Apache-2.0
/// A malloc() that can refuse memory to NUPA's libraries, whose operators call it. It is another shared library,
/// because programs under a sanitizer must not have it.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstring>

extern "C" {

void* __libc_malloc(size_t size);

static std::atomic<bool (*)()> g_steps{nullptr};
static std::atomic<bool (*)()> g_may{nullptr};

__attribute__((visibility("default"))) void nupa_test_watch_malloc(bool (*steps)(), bool (*may)()) {
  g_may = may;
  g_steps = steps;
}

__attribute__((visibility("default"))) void* malloc(size_t size) {
  const auto steps = g_steps.load(std::memory_order_acquire);
  if (steps == nullptr || !steps()) [[likely]]
    return __libc_malloc(size);
  // Allocations of libc are not those of an operator.
  Dl_info caller{};
  const bool is_library = dladdr(__builtin_return_address(0), &caller) != 0 && caller.dli_fname != nullptr &&
                          (std::strstr(caller.dli_fname, "/libnupa") != nullptr ||
                           std::strstr(caller.dli_fname, "/libibverbs.so") != nullptr ||
                           std::strstr(caller.dli_fname, "/librdmacm.so") != nullptr);
  return is_library && !g_may.load()() ? nullptr : __libc_malloc(size);
}

}  // extern "C"
