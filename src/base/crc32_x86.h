// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The CRC-32 by carry-less products of x86. crc32.cc alone includes it.
#include <immintrin.h>

#include "base/crc32_table.h"

namespace nupa::base {
namespace {

/// Multipliers that move the two halves of 128 bits on by `distance` bits. A carry-less product of two numbers in this
/// bit order is one bit too low, so a multiplier has 33 bits.
struct Fold {
  uint64_t low;
  uint64_t high;
};
constexpr Fold fold_by(uint32_t distance) {
  return {uint64_t{crc32_x_to(distance + 32)} << 1, uint64_t{crc32_x_to(distance - 32)} << 1};
}
constexpr Fold kBy2048 = fold_by(2048);
constexpr Fold kBy1024 = fold_by(1024);
constexpr Fold kBy512 = fold_by(512);
constexpr Fold kBy128 = fold_by(128);
// The values that the paper prints.
static_assert(kBy512.low == 0x154442bd4 && kBy512.high == 0x1c6e41596);
static_assert(kBy128.low == 0x1751997d0 && kBy128.high == 0x0ccaa009e);

[[gnu::target("pclmul,sse4.1"), gnu::always_inline]] inline __m128i folded(__m128i value, __m128i by, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(value, by, 0x00);
  const __m128i high = _mm_clmulepi64_si128(value, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/// The prefetch distance in bytes: a line arrives from the third-level cache while these are folded.
constexpr size_t kAhead = 1024;

struct Lanes {
  __m128i a, b, c, d;
};

[[gnu::target("avx512f"), gnu::always_inline]] inline __m512i wide_multiplier(Fold fold) {
  const auto low = static_cast<int64_t>(fold.low), high = static_cast<int64_t>(fold.high);
  return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}

[[gnu::target("avx512f,vpclmulqdq"), gnu::always_inline]] inline __m512i wide_folded(__m512i value, __m512i by,
                                                                                     __m512i next) {
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, by, 0x00), _mm512_clmulepi64_epi128(value, by, 0x11),
                                   next, kXorOfThree);
}

template <Beside kBeside>
[[gnu::target("avx512f"), gnu::always_inline]] inline __m512i wide_take(const std::byte* from, std::byte* to,
                                                                        size_t at) {
  const __m512i value = _mm512_loadu_si512(from + at);
  if constexpr (kBeside == Beside::kCopy) _mm512_storeu_si512(to + at, value);
  return value;
}

/// Folds four lanes at once, 256 bytes a step, where the processor has such products (Intel's Ice Lake, AMD's Zen 4).
/// `length`: 512 at least. Returns the number of bytes done, and leaves the state of the last 64 of these in `lanes`.
template <Beside kBeside>
[[gnu::target("avx512f,vpclmulqdq,prfchw"), gnu::noinline]] size_t fold_wide(uint32_t state, const std::byte* data,
                                                                             size_t length, std::byte* to,
                                                                             Lanes* lanes) {
  const __m512i by2048 = wide_multiplier(kBy2048);
  const __m512i by512 = wide_multiplier(kBy512);
  constexpr size_t kStep = 256;
  __m512i a = _mm512_xor_si512(wide_take<kBeside>(data, to, 0),
                               _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  __m512i b = wide_take<kBeside>(data, to, 64);
  __m512i c = wide_take<kBeside>(data, to, 128);
  __m512i d = wide_take<kBeside>(data, to, 192);
  size_t at = kStep;
  for (; at + kStep <= length; at += kStep) {
    for (size_t line = 0; line < kStep; line += 64) {
      __builtin_prefetch(data + at + kAhead + line);
      if constexpr (kBeside == Beside::kFetch) __builtin_prefetch(to + at - kStep + line, 1);
    }
    a = wide_folded(a, by2048, wide_take<kBeside>(data, to, at));
    b = wide_folded(b, by2048, wide_take<kBeside>(data, to, at + 64));
    c = wide_folded(c, by2048, wide_take<kBeside>(data, to, at + 128));
    d = wide_folded(d, by2048, wide_take<kBeside>(data, to, at + 192));
  }
  a = wide_folded(wide_folded(wide_folded(a, by512, b), by512, c), by512, d);
  _mm512_storeu_si512(lanes, a);
  return at;
}

const bool kFoldsWide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");

/// `to`: the memory to prefetch, or to copy to.
template <Beside kBeside>
[[gnu::target("pclmul,sse4.1,prfchw")]] uint32_t by_processor(uint32_t state, const std::byte* data, size_t length,
                                                              std::byte* to) {
  const auto take = [&](size_t at) __attribute__((target("pclmul,sse4.1,prfchw"), always_inline)) {
    const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + at));
    if constexpr (kBeside == Beside::kCopy) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at), value);
    return value;
  };
  const auto multiplier = [](Fold fold) __attribute__((target("sse4.1"), always_inline)) {
    return _mm_set_epi64x(static_cast<int64_t>(fold.high), static_cast<int64_t>(fold.low));
  };
  const __m128i by512 = multiplier(kBy512);
  const __m128i by128 = multiplier(kBy128);
  Lanes lanes;
  size_t at = 64;
  if (length >= 512 && kFoldsWide)
    at = fold_wide<kBeside>(state, data, length, to, &lanes);
  else
    lanes = {_mm_xor_si128(take(0), _mm_cvtsi32_si128(static_cast<int>(state))), take(16), take(32), take(48)};
  auto [a, b, c, d] = lanes;
  if (at == 64 && length >= 256) {
    // Eight products are in flight at once, enough that none waits for another.
    const __m128i by1024 = multiplier(kBy1024);
    __m128i e = take(64), f = take(80), g = take(96), h = take(112);
    for (at = 128; at + 128 <= length; at += 128) {
      // The next bytes are in the second-level cache at best, and often right behind these.
      __builtin_prefetch(data + at + kAhead);
      __builtin_prefetch(data + at + kAhead + 64);
      if constexpr (kBeside == Beside::kFetch) {
        __builtin_prefetch(to + at - 128, 1);
        __builtin_prefetch(to + at - 64, 1);
      }
      a = folded(a, by1024, take(at));
      b = folded(b, by1024, take(at + 16));
      c = folded(c, by1024, take(at + 32));
      d = folded(d, by1024, take(at + 48));
      e = folded(e, by1024, take(at + 64));
      f = folded(f, by1024, take(at + 80));
      g = folded(g, by1024, take(at + 96));
      h = folded(h, by1024, take(at + 112));
    }
    a = folded(a, by512, e);
    b = folded(b, by512, f);
    c = folded(c, by512, g);
    d = folded(d, by512, h);
  }
  for (; at + 64 <= length; at += 64) {
    a = folded(a, by512, take(at));
    b = folded(b, by512, take(at + 16));
    c = folded(c, by512, take(at + 32));
    d = folded(d, by512, take(at + 48));
  }
  a = folded(a, by128, b);
  a = folded(a, by128, c);
  a = folded(a, by128, d);
  for (; at + 16 <= length; at += 16) a = folded(a, by128, take(at));
  // The remaining 16 bytes replace everything before them, as if they were a part of the message.
  std::byte rest[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), a);
  state = by_table(0, rest, sizeof rest);
  if constexpr (kBeside == Beside::kCopy) {
    std::memcpy(to + at, data + at, length - at);
    data = to;
  }
  return by_table(state, data + at, length - at);
}

const bool kIsFast = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");

}  // namespace
}  // namespace nupa::base
