// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ccl/reduce/reduce.h"

namespace nupa::ccl {

/// A user-defined operator: result[i] = result[i] op next[i] for i < elements of `type`. It must be associative.
using UserFunction = void (*)(void* result, const void* next, size_t elements, int type, void* argument);

/// The reduction of a call on one rank.
struct Reducer {
  Reduction reduction;
  UserFunction function = nullptr;  ///< replaces the operator
  void* argument = nullptr;         ///< passed to the function
  uint64_t factor = 0;              ///< kPremultipliedSum: the bytes of this rank's factor, one element

  size_t element_bytes() const { return size_of(reduction.type); }
};

/// Returns whether each rank multiplies its elements by a factor that the other ranks do not have.
inline bool has_factors(const Reducer& reducer) {
  return reducer.reduction.op == Operator::kPremultipliedSum && reducer.function == nullptr;
}

}  // namespace nupa::ccl
