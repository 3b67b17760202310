// SPDX-License-Identifier: Apache-2.0
#pragma once
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace nupa::progress {

/// Marks a spin loop for the processor: 40 to 140 cycles on x86.
inline void relax() {
#ifdef __x86_64__
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace nupa::progress
