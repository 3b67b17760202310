#pragma once
/// What algorithms of two levels are made of.
#include "ccl/lane/transfer.h"
#include "ccl/plan/algorithms.h"
#include "ccl/two_level/algorithms.h"

namespace nupa::ccl::two_level {

// A part of a collective, which is a call among fewer ranks. The call has to stay until it is done.
inline Steps run_within(TwoLevelGroup& group, const Call& call) {
  return choose(call, group.local())->start(group.local(), call);
}
/// Of a rank that has a column.
inline Steps run_between(TwoLevelGroup& group, const Call& call) {
  return choose(call, *group.column())->start(*group.column(), call);
}

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
