// SPDX-License-Identifier: Apache-2.0
#pragma once
/// 16 bytes that are loaded and stored by one instruction each. Neither is atomic.
#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cstring>
#endif

namespace nupa::base {

#if defined(__x86_64__)
using WideWord = __m128i;
[[gnu::always_inline]] inline WideWord load_wide(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}
/// `to` is a multiple of 16.
[[gnu::always_inline]] inline void store_wide(void* to, WideWord word) {
  _mm_store_si128(static_cast<__m128i*>(to), word);
}
#else
using WideWord = unsigned char __attribute__((vector_size(16)));
[[gnu::always_inline]] inline WideWord load_wide(const void* from) {
  WideWord word;
  std::memcpy(&word, from, sizeof word);
  return word;
}
/// `to` is a multiple of 16.
[[gnu::always_inline]] inline void store_wide(void* to, WideWord word) {
  std::memcpy(__builtin_assume_aligned(to, sizeof word), &word, sizeof word);
}
#endif

}  // namespace nupa::base
