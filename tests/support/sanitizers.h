// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The sanitizers that a test runs with, and why some tests are skipped under them. A test that a sanitizer does not
/// watch can be linked with a library that it watches.

extern "C" {
void __asan_init() __attribute__((weak));
void __tsan_init() __attribute__((weak));
void __tsan_acquire(void* at) __attribute__((weak));
void __tsan_release(void* at) __attribute__((weak));
}

namespace nupa::test {

inline const bool kThreadSanitizer = __tsan_init != nullptr;
inline const bool kAddressSanitizer = __asan_init != nullptr;
inline const bool kSanitized = kThreadSanitizer || kAddressSanitizer;

/// ThreadSanitizer does not see atomics of a test that it does not watch. Before a store that hands memory to another
/// thread: note_release(). Behind the load that has seen it: note_acquire().
inline void note_release(void* at) {
  if (__tsan_release != nullptr) __tsan_release(at);
}
inline void note_acquire(void* at) {
  if (__tsan_acquire != nullptr) __tsan_acquire(at);
}

inline constexpr const char* kNoThreadInChild =
    "ThreadSanitizer allows no new thread in a child of a process with several";

}  // namespace nupa::test
