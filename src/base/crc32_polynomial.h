// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::base {

/// Products and powers of x modulo the polynomial, in the CRC's own bit order: x^0 is the top bit.
constexpr uint32_t kCrcPolynomial = 0xedb88320;
constexpr uint32_t crc32_times(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 0x80000000; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b & 1) != 0 ? b >> 1 ^ kCrcPolynomial : b >> 1;
  }
  return product;
}
constexpr uint32_t crc32_x_to(uint64_t power) {
  uint32_t result = 0x80000000;
  for (uint32_t square = 0x40000000; power != 0; power >>= 1, square = crc32_times(square, square))
    if (power & 1) result = crc32_times(result, square);
  return result;
}

}  // namespace nupa::base
