// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

namespace nupa::ccl {

/// The type of an array's elements. The numbers must not change, because peers exchange them.
enum class Type : uint8_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt16 = 2,
  kUint16 = 3,
  kInt32 = 4,
  kUint32 = 5,
  kInt64 = 6,
  kUint64 = 7,
  kFloat16 = 8,   ///< IEEE 754 binary16
  kBfloat16 = 9,  ///< the upper half of a float32
  kFloat32 = 10,
  kFloat64 = 11,
  kFloat8E4m3 = 12,  ///< OCP 8-bit floating point (OFP8), 4 bits of exponent: no infinities, largest 448
  kFloat8E5m2 = 13,  ///< OFP8, 5 bits of exponent: infinities, largest finite 57344
};
constexpr uint32_t kTypes = 14;

constexpr size_t size_of(Type type) {
  constexpr uint8_t kSizes[kTypes] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1};
  return kSizes[static_cast<size_t>(type)];
}
constexpr bool is_integer(Type type) { return type <= Type::kUint64; }

/// The operation that combines the elements of several ranks.
enum class Operator : uint8_t {
  kSum = 0,  ///< integers wrap
  kProduct = 1,
  kMin = 2,  ///< for floating point as minimum of IEEE 754-2019: NaN if any is NaN, -0 below +0
  kMax = 3,
  kAverage = 4,           ///< the sum divided by the number of ranks; an integer sum wraps and is divided towards 0
  kPremultipliedSum = 5,  ///< the sum of each rank's elements multiplied by its factor
  kBitAnd = 6,
  kBitOr = 7,
  kBitXor = 8,
  kLogicalAnd = 9,  ///< the result is 1 or 0
  kLogicalOr = 10,
  kLogicalXor = 11,
};
constexpr uint32_t kOperators = 12;

/// Bitwise and logical operators are for integers only, as in MPI (5.9.2).
constexpr bool is_defined(Operator op, Type type) { return op < Operator::kBitAnd || is_integer(type); }

}  // namespace nupa::ccl
