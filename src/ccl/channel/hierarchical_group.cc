// SPDX-License-Identifier: Apache-2.0
#include "ccl/channel/hierarchical_group.h"

namespace nupa::ccl {

HierarchicalGroup::HierarchicalGroup(const Topology& topology, ShmGroup& local, ChannelGroup& all,
                                     ChannelGroup* cross_node_group, const Parts& parts)
    : topology_(topology),
      local_(local),
      all_(all),
      cross_node_group_(cross_node_group),
      parts_(parts),
      cross_node_groups_(topology.fewest()),
      places_(topology.ranks) {
  uint32_t next = 0;
  for (uint32_t memory = 0; memory < memories(); ++memory)
    for (uint32_t index = 0; index < size_of_memory(memory); ++index) {
      const uint32_t rank = topology.memories[memory][index];
      places_[rank] = {memory, index};
      is_in_order_ = is_in_order_ && rank == next++;
    }
}

}  // namespace nupa::ccl
