// SPDX-License-Identifier: Apache-2.0
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nupa::progress {

/// Marks a spin loop for the processor: 40 to 140 cycles on x86. On arm64 `isb` takes some tens of cycles; `yield` does
/// nothing on most processors.
inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace nupa::progress
