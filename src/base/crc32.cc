#include "base/crc32.h"

#include <immintrin.h>

#include <array>
#include <cstring>

namespace nupa::base {
namespace {

using Table = std::array<std::array<uint32_t, 256>, 8>;

/// table[k][b]: what byte b does to the state k bytes later.
constexpr Table make_table() {
  Table table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = (state & 1) != 0 ? state >> 1 ^ kCrcPolynomial : state >> 1;
    table[0][byte] = state;
  }
  for (uint32_t byte = 0; byte < 256; ++byte)
    for (size_t k = 1; k < 8; ++k) table[k][byte] = table[k - 1][byte] >> 8 ^ table[0][table[k - 1][byte] & 0xff];
  return table;
}
constexpr Table kTable = make_table();

uint32_t by_table(uint32_t state, const std::byte* data, size_t length) {
  for (; length >= 8; data += 8, length -= 8) {
    uint32_t low, high;
    std::memcpy(&low, data, 4);
    std::memcpy(&high, data + 4, 4);
    low ^= state;
    state = kTable[7][low & 0xff] ^ kTable[6][low >> 8 & 0xff] ^ kTable[5][low >> 16 & 0xff] ^ kTable[4][low >> 24] ^
            kTable[3][high & 0xff] ^ kTable[2][high >> 8 & 0xff] ^ kTable[1][high >> 16 & 0xff] ^ kTable[0][high >> 24];
  }
  for (; length > 0; ++data, --length)
    state = state >> 8 ^ kTable[0][(state ^ std::to_integer<uint32_t>(*data)) & 0xff];
  return state;
}

/// Folding moves 128 bits `distance` bits on: the multipliers of their two halves. A product without carry of two
/// numbers in this bit order comes out one bit low, for which the multiplier has 33 bits.
struct Fold {
  uint64_t low;
  uint64_t high;
};
constexpr Fold fold_by(uint32_t distance) {
  return {uint64_t{crc32_x_to(distance + 32)} << 1, uint64_t{crc32_x_to(distance - 32)} << 1};
}
constexpr Fold kBy512 = fold_by(512);
constexpr Fold kBy128 = fold_by(128);
// As the paper prints them.
static_assert(kBy512.low == 0x154442bd4 && kBy512.high == 0x1c6e41596);
static_assert(kBy128.low == 0x1751997d0 && kBy128.high == 0x0ccaa009e);

[[gnu::target("pclmul,sse4.1"), gnu::always_inline]] inline __m128i folded(__m128i value, __m128i by, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(value, by, 0x00);
  const __m128i high = _mm_clmulepi64_si128(value, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

template <bool kCopies>
[[gnu::target("pclmul,sse4.1")]] uint32_t by_folding(uint32_t state, std::byte* to, const std::byte* from,
                                                     size_t length) {
  const auto take = [&](size_t at) __attribute__((target("pclmul,sse4.1"), always_inline)) {
    const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
    if constexpr (kCopies) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at), value);
    return value;
  };
  const __m128i by512 = _mm_set_epi64x(static_cast<int64_t>(kBy512.high), static_cast<int64_t>(kBy512.low));
  const __m128i by128 = _mm_set_epi64x(static_cast<int64_t>(kBy128.high), static_cast<int64_t>(kBy128.low));
  __m128i a = _mm_xor_si128(take(0), _mm_cvtsi32_si128(static_cast<int>(state)));
  __m128i b = take(16), c = take(32), d = take(48);
  size_t at = 64;
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
  // What is left stands for all before it, as 16 bytes of a message would.
  std::byte rest[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), a);
  state = by_table(0, rest, sizeof rest);
  if constexpr (kCopies) std::memcpy(to + at, from + at, length - at);
  return by_table(state, from + at, length - at);
}

const bool kFolds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");

}  // namespace

uint32_t crc32(uint32_t state, const std::byte* data, size_t length) {
  if (length >= 64 && kFolds) return by_folding<false>(state, nullptr, data, length);
  return by_table(state, data, length);
}

uint32_t crc32_copy(uint32_t state, std::byte* to, const std::byte* from, size_t length) {
  if (length >= 64 && kFolds) return by_folding<true>(state, to, from, length);
  std::memcpy(to, from, length);
  return by_table(state, from, length);
}

}  // namespace nupa::base
