// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <optional>

#include "ccl/call/call.h"
#include "ccl/channel/arena.h"

namespace nupa::ccl {

/// A collective whose data fits into a flag line: the needed parts of a Call, without its lists.
struct InlineCall {
  Operation operation;  ///< kBarrier, kBroadcast (`in` is `out`), kAllGather or kAllReduce
  const void* in = nullptr;
  void* out = nullptr;
  size_t elements = 0;
  Reduction reduction{Type::kUint8, Operator::kSum};
  uint32_t root = 0;

  size_t bytes() const { return elements * size_of(reduction.type); }
  bool fits() const {
    return elements <= FlagLine::kPayload && bytes() <= FlagLine::kPayload &&
           (elements == 0 || (in != nullptr && out != nullptr));
  }
};

/// Returns the InlineCall of a call, or nothing if the call does not fit into a flag line.
std::optional<InlineCall> inline_call(const Call& call);

}  // namespace nupa::ccl
