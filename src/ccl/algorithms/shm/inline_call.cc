// SPDX-License-Identifier: Apache-2.0
#include "ccl/algorithms/shm/inline_call.h"

namespace nupa::ccl {

std::optional<InlineCall> inline_call(const Call& call) {
  const bool is_plain =
      call.reducer.function == nullptr && !has_factors(call.reducer) && call.equal && call.purpose == Purpose::kItself;
  const bool is_one = call.operation == Operation::kBarrier || call.operation == Operation::kBroadcast ||
                      call.operation == Operation::kAllGather || call.operation == Operation::kAllReduce;
  const InlineCall line{call.operation, call.in, call.out, call.elements, call.reducer.reduction, call.root};
  if (!is_plain || !is_one || !line.fits()) return {};
  return line;
}

}  // namespace nupa::ccl
