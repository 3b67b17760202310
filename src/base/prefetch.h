// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace nupa::base {

/// Fetches a cache line for writing ahead of its use. On x86 the compiler's builtin fetches it for reading only, unless
/// the processor is given.
inline void prefetch_for_write(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

}  // namespace nupa::base
