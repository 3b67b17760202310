#pragma once
/// What algorithms of two levels are made of.
#include "ccl/algorithms/messages/transfer.h"
#include "ccl/algorithms/hierarchical.h"

namespace nupa::ccl::two_level {

/// A part that neither has the program's lists nor an end of its own.
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
/// The same of what has been multiplied by its ranks' factors.
inline Call second_part_of(const Call& call, Operation operation) {
  Call part = part_of(call, operation);
  part.reducer = lanes::partial(call.reducer);
  return part;
}

}  // namespace nupa::ccl::two_level
