// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The sanitizers that a test runs with, and why some tests are skipped under them. A test that AddressSanitizer does
/// not watch can be linked with a library that it watches.

extern "C" void __asan_init() __attribute__((weak));

namespace nupa::test {

#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
inline const bool kAddressSanitizer = __asan_init != nullptr;
inline const bool kSanitized = kThreadSanitizer || kAddressSanitizer;

inline constexpr const char* kNoThreadInChild =
    "ThreadSanitizer allows no new thread in a child of a process with several";

}  // namespace nupa::test
