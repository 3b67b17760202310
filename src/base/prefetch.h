// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace nupa::base {

/// Fetches a cache line for writing ahead of its use. (The compiler's builtin fetches it for reading only, unless the
/// processor is given.)
inline void prefetch_for_write(const void* line) {
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
}

}  // namespace nupa::base
