// SPDX-License-Identifier: Apache-2.0
#include "ccl/channel/shm_group.h"

#include "progress/words.h"

namespace nupa::ccl {

ShmGroup::ShmGroup(uint32_t rank, std::vector<std::byte*> arenas, std::vector<uint32_t> ranks_outside,
                   size_t slot_bytes, const WaitRules& rules)
    : rank_(rank),
      arenas_(std::move(arenas)),
      ranks_outside_(std::move(ranks_outside)),
      head_(&head_of(rank)),
      slot_bytes_(slot_bytes),
      rules_(rules),
      seen_(arenas_.size()) {
  progress::use_sleeper_fences();
}

void ShmGroup::refresh(uint32_t step) {
  // This rank has completed all steps before `step`. No rank waits for a flag line with this number.
  publish(step);
  for (FlagLine& line : head().lines)
    if (static_cast<int32_t>(step - line.step.load(std::memory_order_relaxed)) > 0)
      progress::count_up(line.step, step, head().sleepers, rules_.fences());
}

}  // namespace nupa::ccl
