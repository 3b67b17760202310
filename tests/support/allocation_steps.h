// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A step before each allocation of a thread, by the program and by NUPA's libraries. Replaces the program's operators:
/// included by one of its files. Libraries that have the C++ library in them use their own operators; a program that
/// tests them links library_malloc.cc as well.
#include <cstdlib>
#include <new>

/// Of library_malloc.cc. Null: it is not linked. `steps`: if this thread has a step; `may`: the step.
extern "C" __attribute__((weak)) void nupa_test_watch_malloc(bool (*steps)(), bool (*may)());

namespace nupa::test {

/// Null: no step. Returns false if the allocation is to fail.
inline thread_local bool (*allocation_step)() = nullptr;

inline bool may_allocate() { return allocation_step == nullptr || allocation_step(); }

inline const bool watches_malloc = [] {
  if (nupa_test_watch_malloc == nullptr) return false;
  nupa_test_watch_malloc([] { return allocation_step != nullptr; }, may_allocate);
  return true;
}();

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
