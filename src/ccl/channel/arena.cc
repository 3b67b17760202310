// SPDX-License-Identifier: Apache-2.0
#include "ccl/channel/arena.h"

#include "progress/words.h"

namespace nupa::ccl {

void end_arena(ArenaHead& head, const Cause& cause) {
  uint64_t none = 0;
  head.ended.compare_exchange_strong(none, cause.packed(), std::memory_order_acq_rel);
  progress::wake_all(head.mark);
  progress::wake_all(head.departed);
  for (const FlagLine& line : head.lines) progress::wake_all(line.step);
}

}  // namespace nupa::ccl
