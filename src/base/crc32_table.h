// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The CRC-32 by tables, for any processor, and what the processors' own versions share. crc32.cc alone includes it.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/crc32_polynomial.h"

namespace nupa::base {
namespace {

using Table = std::array<std::array<uint32_t, 256>, 8>;

/// table[k][b]: the change of the state by byte b, k bytes later.
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
  if (length >= 4) {
    uint32_t word;
    std::memcpy(&word, data, 4);
    word ^= state;
    state = kTable[3][word & 0xff] ^ kTable[2][word >> 8 & 0xff] ^ kTable[1][word >> 16 & 0xff] ^ kTable[0][word >> 24];
    data += 4;
    length -= 4;
  }
  for (; length > 0; ++data, --length)
    state = state >> 8 ^ kTable[0][(state ^ std::to_integer<uint32_t>(*data)) & 0xff];
  return state;
}

/// The use of the memory `to` meanwhile.
enum class Beside : uint8_t { kNothing, kFetch, kCopy };

}  // namespace
}  // namespace nupa::base
