// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <vector>

#include "ccl/call/call.h"
#include "ccl/channel/channel_group.h"
#include "ccl/channel/shm_group.h"
#include "ccl/channel/topology.h"

namespace nupa::ccl {

/// Ranks on several nodes, from the view of one of them. Ranks of a node map each other's arenas; ranks of different
/// nodes exchange messages. Ranks with the same index on their nodes form a cross-node group, in which a rank has the
/// number of its node. One thread at a time.
class HierarchicalGroup {
 public:
  /// Starts a part of a collective with the best algorithm for it. The call must outlive the part.
  struct Parts {
    CollectiveTask (*within)(ShmGroup& group, const Call& call);
    CollectiveTask (*between)(ChannelGroup& group, const Call& call);
  };

  /// All references must outlive this. `all`: every rank. `column`: this rank's cross-node group, or null if there is
  /// none.
  HierarchicalGroup(const Topology& topology, ShmGroup& local, ChannelGroup& all, ChannelGroup* cross_node_group,
                    const Parts& parts);

  const Topology& topology() const { return topology_; }
  FramePool& frames() { return local_.frames(); }
  ShmGroup& local() { return local_; }
  ChannelGroup& all() { return all_; }
  /// Null if some node has no rank with this rank's index.
  ChannelGroup* cross_node_group() { return cross_node_group_; }
  uint32_t cross_node_groups() const { return cross_node_groups_; }

  /// Run a part of a collective among the ranks of this node, and in this rank's cross-node group, which must exist.
  CollectiveTask run_within(const Call& call) { return parts_.within(local_, call); }
  CollectiveTask run_between(const Call& call) { return parts_.between(*cross_node_group_, call); }

  /// These take any rank.
  uint32_t memory_of(uint32_t rank) const { return places_[rank].memory; }
  uint32_t index_of(uint32_t rank) const { return places_[rank].index; }
  uint32_t first_of(uint32_t memory) const { return topology_.memories[memory].front(); }
  uint32_t memories() const { return static_cast<uint32_t>(topology_.memories.size()); }
  uint32_t size_of_memory(uint32_t memory) const { return static_cast<uint32_t>(topology_.memories[memory].size()); }

  /// True if the ranks of each node are consecutive.
  bool is_in_order() const { return is_in_order_; }
  /// True if all nodes have the same number of ranks.
  bool is_even() const { return topology_.fewest() == topology_.most(); }

 private:
  struct Place {
    uint32_t memory;
    uint32_t index;
  };

  const Topology& topology_;
  ShmGroup& local_;
  ChannelGroup& all_;
  ChannelGroup* const cross_node_group_;
  const Parts parts_;
  const uint32_t cross_node_groups_;
  std::vector<Place> places_;  ///< by rank
  bool is_in_order_ = true;
};

}  // namespace nupa::ccl
