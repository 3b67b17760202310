// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The sanitizers that a test is built with, and why some tests are skipped under them.

namespace nupa::test {

#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
inline constexpr bool kSanitized = kThreadSanitizer || kAddressSanitizer;

inline constexpr const char* kNoThreadInChild =
    "ThreadSanitizer allows no new thread in a child of a process with several";

}  // namespace nupa::test
