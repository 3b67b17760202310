#include "ccl/mapped/group.h"

namespace nupa::ccl {

MappedGroup::MappedGroup(uint32_t rank, std::vector<std::byte*> arenas, std::vector<uint32_t> ranks_outside,
                         size_t slot_bytes, const WaitRules& rules)
    : rank_(rank),
      arenas_(std::move(arenas)),
      ranks_outside_(std::move(ranks_outside)),
      head_(&head_of(rank)),
      slot_bytes_(slot_bytes),
      rules_(rules) {
  prepare_waiting();
}

}  // namespace nupa::ccl
