// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The short floating-point formats, one number at a time. The vector code must agree with them.
#include <bit>
#include <cstdint>

namespace nupa::ccl {

/// A binary format in the lower bits of an integer: sign, exponent, mantissa.
struct Format {
  uint32_t exponent_bits;
  uint32_t mantissa_bits;
  bool has_infinity;  ///< otherwise the only NaN has all bits except the sign set; the largest number is one below

  constexpr uint32_t bias() const { return (1u << (exponent_bits - 1)) - 1; }
  constexpr uint32_t sign() const { return 1u << (exponent_bits + mantissa_bits); }
  constexpr uint32_t infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
  /// The largest finite magnitude.
  constexpr uint32_t largest() const { return has_infinity ? infinity() - 1 : sign() - 2; }
  constexpr uint32_t nan() const { return has_infinity ? infinity() | 1u << (mantissa_bits - 1) : sign() - 1; }
};

constexpr Format kFloat16Format{5, 10, true};
constexpr Format kBfloat16Format{8, 7, true};
constexpr Format kE4m3Format{4, 3, false};
constexpr Format kE5m2Format{5, 2, true};

constexpr uint32_t kFloat32Mantissa = 23;
constexpr uint32_t kFloat32Bias = 127;
constexpr uint32_t kFloat32Sign = 0x80000000;
constexpr uint32_t kFloat32Infinity = 0x7f800000;

/// The conversion is exact.
constexpr float decode_float(Format format, uint32_t bits) {
  const uint32_t sign = (bits & format.sign()) != 0 ? kFloat32Sign : 0;
  const uint32_t rest = bits & (format.sign() - 1);
  const uint32_t shift = kFloat32Mantissa - format.mantissa_bits;
  if (format.has_infinity && rest >= format.infinity())
    return std::bit_cast<float>(sign | kFloat32Infinity | (rest - format.infinity()) << shift);
  if (!format.has_infinity && rest == format.nan()) return std::bit_cast<float>(sign | kFloat32Infinity | 1u << 22);
  // A multiplication corrects the exponent, and makes subnormal numbers normal.
  const uint32_t scale = (2 * kFloat32Bias - format.bias()) << kFloat32Mantissa;
  if (format.exponent_bits == 8) return std::bit_cast<float>(sign | rest << shift);
  return std::bit_cast<float>(
      sign | std::bit_cast<uint32_t>(std::bit_cast<float>(rest << shift) * std::bit_cast<float>(scale)));
}

/// Rounds to nearest, ties to even.
constexpr uint32_t encode_float(Format format, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits & kFloat32Sign) != 0 ? format.sign() : 0;
  const uint32_t rest = bits & ~kFloat32Sign;
  const uint32_t shift = kFloat32Mantissa - format.mantissa_bits;
  if (rest > kFloat32Infinity) {
    // The NaN's payload is kept as far as there is room, as in the processor's own conversion.
    if (!format.has_infinity) return sign | format.nan();
    return sign | format.nan() | ((rest >> shift) & (format.infinity() | ((1u << format.mantissa_bits) - 1)));
  }
  if (rest == kFloat32Infinity) return sign | (format.has_infinity ? format.infinity() : format.nan());
  const uint32_t smallest_normal = (kFloat32Bias - format.bias() + 1) << kFloat32Mantissa;
  uint32_t rounded;
  if (format.exponent_bits < 8 && rest < smallest_normal) {
    // The processor rounds when a number is added whose last bit has the weight of the format's smallest number.
    const uint32_t magic = (kFloat32Bias - format.bias() + 1 + shift) << kFloat32Mantissa;
    rounded = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + std::bit_cast<float>(magic)) - magic;
  } else {
    const uint32_t half = (1u << (shift - 1)) - 1;
    rounded = (rest + half + (rest >> shift & 1)) >> shift;
    rounded -= (kFloat32Bias - format.bias()) << format.mantissa_bits;
  }
  const uint32_t most = format.has_infinity ? format.infinity() : format.largest();
  return sign | (rounded < most ? rounded : most);
}

}  // namespace nupa::ccl
