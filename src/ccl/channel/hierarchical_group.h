#pragma once
#include <memory>
#include <vector>

#include "ccl/call/call.h"
#include "ccl/channel/lane_group.h"
#include "ccl/channel/shm_group.h"
#include "ccl/channel/topology.h"

namespace nupa::ccl {

/// Ranks in several memories, as one of them has it: within a memory they map each other's arenas, between memories
/// they send messages. Ranks that have the same index in their memories are a column, in which a rank is numbered as
/// its memory is. One thread at a time.
class TwoLevelGroup {
 public:
  /// Begins a part of a collective by whichever algorithm is best for it. The call stays until it is done.
  struct Parts {
    Steps (*within)(MappedGroup& group, const Call& call);
    Steps (*between)(LaneGroup& group, const Call& call);
  };

  /// All that is referred to outlives this. `all`: every rank; `column`: this rank's, null if there is none.
  TwoLevelGroup(const Topology& topology, MappedGroup& local, LaneGroup& all, LaneGroup* column, const Parts& parts);

  const Topology& topology() const { return topology_; }
  FramePool& frames() { return local_.frames(); }
  MappedGroup& local() { return local_; }
  LaneGroup& all() { return all_; }
  /// Null where some memory has no rank of this one's index.
  LaneGroup* column() { return column_; }
  uint32_t columns() const { return columns_; }

  /// A part of a collective among the ranks of this memory, and among those of this rank's column, which has one.
  Steps run_within(const Call& call) { return parts_.within(local_, call); }
  Steps run_between(const Call& call) { return parts_.between(*column_, call); }

  /// Of any rank.
  uint32_t memory_of(uint32_t rank) const { return places_[rank].memory; }
  uint32_t index_of(uint32_t rank) const { return places_[rank].index; }
  uint32_t first_of(uint32_t memory) const { return topology_.memories[memory].front(); }
  uint32_t memories() const { return static_cast<uint32_t>(topology_.memories.size()); }
  uint32_t size_of_memory(uint32_t memory) const { return static_cast<uint32_t>(topology_.memories[memory].size()); }

  /// The ranks of each memory follow each other.
  bool is_in_order() const { return is_in_order_; }
  /// All memories have as many ranks.
  bool is_even() const { return topology_.fewest() == topology_.most(); }

 private:
  struct Place {
    uint32_t memory;
    uint32_t index;
  };

  const Topology& topology_;
  MappedGroup& local_;
  LaneGroup& all_;
  LaneGroup* const column_;
  const Parts parts_;
  const uint32_t columns_;
  std::vector<Place> places_;  ///< by rank
  bool is_in_order_ = true;
};

}  // namespace nupa::ccl
