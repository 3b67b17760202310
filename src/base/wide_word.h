// SPDX-License-Identifier: Apache-2.0
#pragma once
/// 16 bytes that are stored by one instruction, which is not atomic.
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cstring>
#endif

namespace nupa::base {

#if defined(__x86_64__)
using WideWord = __m128i;
/// `low` lies at the lower address.
[[gnu::always_inline]] inline WideWord make_wide(uint64_t low, uint64_t high) {
  return _mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low));
}
/// `to` is a multiple of 16.
[[gnu::always_inline]] inline void store_wide(void* to, WideWord word) {
  _mm_store_si128(static_cast<__m128i*>(to), word);
}
#else
using WideWord = uint64_t __attribute__((vector_size(16)));
/// `low` lies at the lower address.
[[gnu::always_inline]] inline WideWord make_wide(uint64_t low, uint64_t high) { return WideWord{low, high}; }
/// `to` is a multiple of 16.
[[gnu::always_inline]] inline void store_wide(void* to, WideWord word) {
  std::memcpy(__builtin_assume_aligned(to, sizeof word), &word, sizeof word);
}
#endif

}  // namespace nupa::base
