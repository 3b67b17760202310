// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The arithmetic of collectives: combines several arrays into one, in one pass over memory. The folder has the types
/// and operators (reducer.h, and names.h for people), the kernels for each processor, and combine.h, which also calls
/// user-defined functions. formats.h has the short floating-point formats, one number at a time. Algorithms use this
/// folder, which includes nothing else of ccl. Thread-safe.
#include "ccl/reduce/type.h"

namespace nupa::ccl {

/// The array of one rank.
struct Source {
  const void* data = nullptr;
  const void* factor = nullptr;  ///< kPremultipliedSum: one element; null: 1
};

/// Largest number of sources of one call.
constexpr uint32_t kMaxSources = 512;

struct Reduction {
  Type type;
  Operator op;
  /// kAverage: the divisor of the sum. 0: no division, because the result is a part of the whole sum.
  uint32_t divisor = 0;
};

/// result[i] = sources[0][i] op sources[1][i] op ... for i < elements, from left to right. The bits are the same
/// however an array is divided into calls, on every processor of one architecture. 8- and 16-bit floating-point types
/// are added up in float32 and rounded once, to nearest even. In kFloat8E4m3, too large results become the largest
/// number and infinities become NaN; kFloat8E5m2 and kFloat16 overflow to infinity. If several elements are NaN, the
/// NaN of the result is unspecified.
///
/// Every source is of `type` and aligned for it. `result` may be one of the sources, but must not overlap one
/// otherwise. One source is copied, and multiplied and divided as requested. is_defined() must hold. Thread-safe.
void reduce(const Reduction& reduction, void* result, const Source* sources, uint32_t count, size_t elements);

}  // namespace nupa::ccl
