// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Common parts of the hierarchical algorithms.
#include "ccl/algorithms/messages/transfer.h"
#include "ccl/algorithms/hierarchical.h"

namespace nupa::ccl::hierarchical {

/// Returns a part of a call, without the program's lists and without a final division.
inline Call part_of(const Call& call, Operation operation) {
  Call part;
  part.operation = operation;
  part.reducer = call.reducer;
  part.reducer.reduction.divisor = 0;
  part.elements = call.elements;
  part.in = call.in;
  part.out = call.out;
  return part;
}
/// The same for elements that are already multiplied by their ranks' factors.
inline Call second_part_of(const Call& call, Operation operation) {
  Call part = part_of(call, operation);
  part.reducer = messages::partial(call.reducer);
  return part;
}

}  // namespace nupa::ccl::hierarchical
