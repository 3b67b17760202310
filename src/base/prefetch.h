#pragma once

namespace nupa::base {

/// Fetches a cache line to write it, while nobody waits for it. (The builtin reads it only, unless told of the
/// processor.)
inline void prefetch_for_write(const void* line) {
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
}

}  // namespace nupa::base
