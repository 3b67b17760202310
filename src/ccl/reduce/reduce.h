#pragma once
/// The arithmetic of collectives: several arrays become one, in one pass over memory. The folder has the types and
/// operators (reducer.h, names.h for people), the kernels of each processor, and combine.h, which also calls a
/// program's own function. formats.h has the short floating point formats one number at a time. Algorithms use it, and
/// it includes nothing else of ccl. Any thread.
#include "ccl/reduce/type.h"

namespace nupa::ccl {

/// One rank's array.
struct Source {
  const void* data = nullptr;
  const void* factor = nullptr;  ///< kPremultipliedSum: one element; null: 1
};

/// Sources of one call at most.
constexpr uint32_t kMaxSources = 512;

struct Reduction {
  Type type;
  Operator op;
  /// kAverage: what the sum is divided by at last; 0: not here, the result is a part of the whole sum.
  uint32_t divisor = 0;
};

/// result[i] = sources[0][i] op sources[1][i] op ... for i < elements, from left to right: the same bits however an
/// array is cut into calls, on every processor of one architecture. The types of 8 and 16 bits of floating point are
/// added up in float32 and rounded once, to nearest even; what is too large for kFloat8E4m3 becomes its largest number,
/// and an infinity NaN; kFloat8E5m2 and kFloat16 overflow to infinity. Every source is of `type` and lies where
/// its elements do; `result` may be one of them, but may not overlap one otherwise. One source: a copy, multiplied and
/// divided as asked. is_defined() holds. Which NaN comes of several is not
/// said. Any thread.
void reduce(const Reduction& reduction, void* result, const Source* sources, uint32_t count, size_t elements);

}  // namespace nupa::ccl
