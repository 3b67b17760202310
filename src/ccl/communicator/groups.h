// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cerrno>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ccl/connect/links.h"
#include "ccl/communicator/options.h"
#include "ccl/connect/cma_reads.h"
#include "ccl/connect/mapped_region_cache.h"
#include "ccl/channel/channel_group.h"
#include "ccl/channel/shm_group.h"
#include "ccl/planner/planner.h"
#include "ccl/channel/topology.h"
#include "ccl/channel/hierarchical_group.h"

namespace nupa::ccl {

/// The groups that a communicator's algorithms run on: ranks that map each other's arenas, ranks that exchange
/// messages, or both. Each group is made when it is first needed, which is at the same point in the order of operations
/// on all ranks. Not thread-safe.
class Groups {
 public:
  /// The objects that the groups use. All of them must outlive the groups.
  struct Places {
    const Allocations& allocations;
    std::span<const PeerInfo> peer_infos;
    const Topology& topology;
    const CommunicatorOptions& options;
    Links& links;
    ChannelGroup::Provider& provider;
    ProgressHooks& hooks;
    std::function<void(uint32_t rank)> on_dead;  ///< called when a rank's process has died
  };
  explicit Groups(Places places);

  /// Calls `use(algorithm, group)` with the algorithm that the planner chooses for the call. Returns the result, or the
  /// error of a group that could not be made.
  template <class Use>
  int use(const Call& call, const Use& use) {
    const Wishes wishes{places_.options.deterministic, places_.options.wanted(call.operation)};
    if (__builtin_expect(kind_ == Kind::kMapped, 1)) {
      if (__builtin_expect(shm_group_ == nullptr, 0))
        if (const int error = make_mapped(); error != 0) return error;
      return use(*choose(call, *shm_group_, wishes), *shm_group_);
    }
    if (kind_ == Kind::kHierarchical) {
      if (const int error = make_hierarchical(); error != 0) return error;
      const Algorithm<HierarchicalGroup>* const two = choose(call, *hierarchical_, wishes);
      if (two != nullptr && (wishes.name.empty() || wishes.name == two->name)) return use(*two, *hierarchical_);
    }
    if (const int error = make_channels(); error != 0) return error;
    return use(*choose(call, *channels_, wishes), *channels_);
  }

  /// The group in which the smallest operations run inline. Null: not made yet, or this communicator has none.
  ShmGroup* inline_group() const { return inline_group_; }

  // The last tasks of a communicator: a barrier, and a wait until no rank needs another one any more.
  CollectiveTask all_here();
  CollectiveTask depart();

 private:
  enum class Kind : uint8_t { kMapped, kHierarchical, kMessages };

  Kind kind_of_ranks() const;
  int run(CollectiveTask steps);
  int make_mapped();
  /// Tests whether all ranks of the node can read each other's memory by CMA.
  int make_reads();
  /// Makes a group of these ranks. It has no links yet.
  std::unique_ptr<ChannelGroup> group_of(uint32_t rank, std::vector<uint32_t> members);
  void make_all();
  int measure(ChannelGroup& group);
  int make_channels();
  int make_hierarchical();

  const Places places_;
  const Kind kind_;
  std::unique_ptr<MappedRegionCache> mapped_regions_;
  std::unique_ptr<CmaReads> reads_;
  std::unique_ptr<ShmGroup> shm_group_;  ///< the ranks of this node
  ShmGroup* inline_group_ = nullptr;
  std::unique_ptr<ChannelGroup> channels_;          ///< all ranks
  bool is_measured_ = false;                        ///< the speed of channels_ is measured
  std::unique_ptr<ChannelGroup> cross_node_group_;  ///< this rank's cross-node group
  std::unique_ptr<HierarchicalGroup> hierarchical_;
};

}  // namespace nupa::ccl
