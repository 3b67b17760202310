#pragma once
#include "ccl/reduce/reduce.h"

namespace nupa::ccl {

/// A program's own operator: result[i] = result[i] op next[i], for i < elements of `type`. It has to be associative.
using UserFunction = void (*)(void* result, const void* next, size_t elements, int type, void* argument);

/// How elements become one, as one rank gives it.
struct Reducer {
  Reduction reduction;
  UserFunction function = nullptr;  ///< instead of the operator
  void* argument = nullptr;         ///< of the function
  uint64_t factor = 0;              ///< kPremultipliedSum: the bytes of this rank's factor, one element

  size_t element_bytes() const { return size_of(reduction.type); }
};

/// Whether the elements of each rank are multiplied by a factor that the other ranks do not know.
inline bool has_factors(const Reducer& reducer) {
  return reducer.reduction.op == Operator::kPremultipliedSum && reducer.function == nullptr;
}

}  // namespace nupa::ccl
