// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A step before each allocation of a thread, by the program and by NUPA's libraries. Replaces the program's operators
/// and its malloc(): included by one of its files.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace nupa::test {

/// Null: no step. Returns false if the allocation is to fail.
inline thread_local bool (*allocation_step)() = nullptr;

inline bool may_allocate() { return allocation_step == nullptr || allocation_step(); }

inline void* allocate(size_t size) { return may_allocate() ? std::malloc(size == 0 ? 1 : size) : nullptr; }

}  // namespace nupa::test

// Not inlined: the compiler would see free() meet the new of <new>, and warn.
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept { return nupa::test::allocate(size); }
[[gnu::noinline]] void* operator new(size_t size) {
  if (void* const memory = nupa::test::allocate(size); memory != nullptr) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

// The libraries have the operators of the C++ library in them, which call malloc(). A sanitizer replaces malloc()
// itself, and its builds have no C++ library in the libraries.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" void* __libc_malloc(size_t size);
extern "C" __attribute__((visibility("default"))) void* malloc(size_t size) {
  if (nupa::test::allocation_step == nullptr) [[likely]]
    return __libc_malloc(size);
  Dl_info caller{};
  // Allocations of libc are not those of an operator.
  const bool is_library = dladdr(__builtin_return_address(0), &caller) != 0 && caller.dli_fname != nullptr &&
                          (std::strstr(caller.dli_fname, "/libnupa") != nullptr ||
                           std::strstr(caller.dli_fname, "/libibverbs.so") != nullptr ||
                           std::strstr(caller.dli_fname, "/librdmacm.so") != nullptr);
  return is_library && !nupa::test::may_allocate() ? nullptr : __libc_malloc(size);
}
#endif
