// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

namespace nupa::base {

/// The CRC-32 of Ethernet and InfiniBand (polynomial 0x04c11db7, bits in wire order) without the inversions at start
/// and end: takes a state and returns the state after `length` bytes. Works on any processor. Where the processor
/// multiplies without carry, it folds 64 to 256 bytes a step (Gopal et al., "Fast CRC Computation Using PCLMULQDQ",
/// 2009). `soon`: memory that is about to be written; `length` bytes there are prefetched meanwhile. Any address is
/// allowed.
uint32_t crc32(uint32_t state, const std::byte* data, size_t length, const std::byte* soon = nullptr);
/// Copies the bytes and returns the CRC state of the copy: a byte that changes meanwhile is the same in both. The
/// ranges must not overlap.
uint32_t crc32_copy(uint32_t state, std::byte* to, const std::byte* from, size_t length);

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
