// SPDX-License-Identifier: Apache-2.0
#include "cli/ccl/number.h"

#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "ccl/reduce/formats.h"
#include "cli/ccl/operations.h"

namespace nupa::cli::collectives {
namespace {

constexpr uint32_t kWordBits = 64;

/// Returns the format of a floating-point type that the processor does not have, or null.
const nupa::ccl::Format* format_of(nupa_ccl_type type) {
  switch (type) {
    case NUPA_CCL_FLOAT16:
      return &nupa::ccl::kFloat16Format;
    case NUPA_CCL_BFLOAT16:
      return &nupa::ccl::kBfloat16Format;
    case NUPA_CCL_FLOAT8_E4M3:
      return &nupa::ccl::kE4m3Format;
    case NUPA_CCL_FLOAT8_E5M2:
      return &nupa::ccl::kE5m2Format;
    default:
      return nullptr;
  }
}

bool is_signed(nupa_ccl_type type) {
  return type == NUPA_CCL_INT8 || type == NUPA_CCL_INT16 || type == NUPA_CCL_INT32 || type == NUPA_CCL_INT64;
}

/// Returns the value after wrapping to an integer of the type.
uint64_t wrapped(nupa_ccl_type type, uint64_t bits) {
  const auto unused = static_cast<uint32_t>(kWordBits - 8 * traits_of(type).size);
  const uint64_t top = bits << unused;
  return is_signed(type) ? static_cast<uint64_t>(static_cast<int64_t>(top) >> unused) : top >> unused;
}

bool is_less(nupa_ccl_type type, uint64_t one, uint64_t other) {
  return is_signed(type) ? static_cast<int64_t>(one) < static_cast<int64_t>(other) : one < other;
}

uint64_t combine_integers(nupa_ccl_type type, nupa_ccl_builtin_op op, uint64_t a, uint64_t b) {
  switch (op) {
    case NUPA_CCL_SUM:
    case NUPA_CCL_AVERAGE:
      return a + b;
    case NUPA_CCL_PRODUCT:
      return a * b;
    case NUPA_CCL_MIN:
      return is_less(type, a, b) ? a : b;
    case NUPA_CCL_MAX:
      return is_less(type, a, b) ? b : a;
    case NUPA_CCL_BIT_AND:
      return a & b;
    case NUPA_CCL_BIT_OR:
      return a | b;
    case NUPA_CCL_BIT_XOR:
      return a ^ b;
    case NUPA_CCL_LOGICAL_AND:
      return a != 0 && b != 0;
    case NUPA_CCL_LOGICAL_OR:
      return a != 0 || b != 0;
    case NUPA_CCL_LOGICAL_XOR:
      return (a != 0) != (b != 0);
  }
  return 0;
}

double combine_numbers(nupa_ccl_builtin_op op, double a, double b) {
  switch (op) {
    case NUPA_CCL_PRODUCT:
      return a * b;
    case NUPA_CCL_MIN:
      return a < b ? a : b;
    case NUPA_CCL_MAX:
      return a < b ? b : a;
    default:
      return a + b;
  }
}

}  // namespace

Element load(nupa_ccl_type type, const std::byte* from) {
  uint64_t bits = 0;
  std::memcpy(&bits, from, traits_of(type).size);
  if (is_integer(type)) return {.bits = wrapped(type, bits)};
  if (const auto* const format = format_of(type))
    return {.number = nupa::ccl::decode_float(*format, static_cast<uint32_t>(bits))};
  if (type == NUPA_CCL_FLOAT32) return {.number = std::bit_cast<float>(static_cast<uint32_t>(bits))};
  return {.number = std::bit_cast<double>(bits)};
}

void store(nupa_ccl_type type, const Element& value, std::byte* to) {
  uint64_t bits = value.bits;
  if (const auto* const format = format_of(type))
    bits = nupa::ccl::encode_float(*format, static_cast<float>(value.number));
  else if (type == NUPA_CCL_FLOAT32)
    bits = std::bit_cast<uint32_t>(static_cast<float>(value.number));
  else if (type == NUPA_CCL_FLOAT64)
    bits = std::bit_cast<uint64_t>(value.number);
  std::memcpy(to, &bits, traits_of(type).size);
}

Element combine(nupa_ccl_type type, nupa_ccl_builtin_op op, const Element& one, const Element& other) {
  if (is_integer(type)) return {.bits = wrapped(type, combine_integers(type, op, one.bits, other.bits))};
  return {.number = combine_numbers(op, one.number, other.number)};
}

Element divide(nupa_ccl_type type, const Element& sum, uint32_t ranks) {
  if (!is_integer(type)) return {.number = sum.number / ranks};
  if (is_signed(type)) return {.bits = static_cast<uint64_t>(static_cast<int64_t>(sum.bits) / ranks)};
  return {.bits = sum.bits / ranks};
}

double epsilon(nupa_ccl_type type) {
  constexpr int kFloat64Mantissa = 52;
  const auto* const format = format_of(type);
  if (format != nullptr) return std::ldexp(1, -static_cast<int>(format->mantissa_bits));
  return std::ldexp(1, type == NUPA_CCL_FLOAT32 ? -static_cast<int>(nupa::ccl::kFloat32Mantissa) : -kFloat64Mantissa);
}

double smallest_normal(nupa_ccl_type type) {
  constexpr int kFloat64Bias = 1023;
  const auto* const format = format_of(type);
  if (format != nullptr) return std::ldexp(1, 1 - static_cast<int>(format->bias()));
  return std::ldexp(1, 1 - (type == NUPA_CCL_FLOAT32 ? static_cast<int>(nupa::ccl::kFloat32Bias) : kFloat64Bias));
}

std::string text_of(nupa_ccl_type type, const Element& value) {
  if (!is_integer(type)) return fmt::format("{}", value.number);
  return is_signed(type) ? fmt::format("{}", static_cast<int64_t>(value.bits)) : fmt::format("{}", value.bits);
}

}  // namespace nupa::cli::collectives
