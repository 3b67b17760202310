#pragma once
#include <cerrno>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ccl/connect/links.h"
#include "ccl/communicator/options.h"
#include "ccl/connect/process_reads.h"
#include "ccl/connect/window_cache.h"
#include "ccl/channel/lane_group.h"
#include "ccl/channel/shm_group.h"
#include "ccl/planner/planner.h"
#include "ccl/channel/topology.h"
#include "ccl/channel/hierarchical_group.h"

namespace nupa::ccl {

/// What a communicator's algorithms run on: its ranks as those who map each other's arenas, who exchange messages, or
/// both. Each group is made when it is first needed, which is at the same place in the order of operations on all
/// ranks. One thread at a time.
class Groups {
 public:
  /// What is referred to outlives this.
  struct Places {
    const Allocations& allocations;
    std::span<const RankCard> cards;
    const Topology& topology;
    const CommunicatorOptions& options;
    Links& links;
    LaneGroup::Ways& ways;
    Surroundings& around;
    std::function<void(uint32_t rank)> on_gone;  ///< its process has been seen to be
  };
  explicit Groups(Places places);

  /// Calls `use(algorithm, group)` for the algorithm that a call is to be done by, and returns what that does; or the
  /// error for which there is no group.
  template <class Use>
  int use(const Call& call, const Use& use) {
    const Wishes wishes{places_.options.deterministic, places_.options.wanted(call.operation)};
    if (__builtin_expect(kind_ == Kind::kMapped, 1)) {
      if (__builtin_expect(mapped_ == nullptr, 0))
        if (const int error = make_mapped(); error != 0) return error;
      return use(*choose(call, *mapped_, wishes), *mapped_);
    }
    if (kind_ == Kind::kTwoLevel) {
      if (const int error = make_two_level(); error != 0) return error;
      const Algorithm<TwoLevelGroup>* const two = choose(call, *two_level_, wishes);
      if (two != nullptr && (wishes.name.empty() || wishes.name == two->name)) return use(*two, *two_level_);
    }
    if (const int error = make_lanes(); error != 0) return error;
    return use(*choose(call, *lanes_, wishes), *lanes_);
  }

  /// In which the smallest operations run inline. Null: not yet, or not here.
  MappedGroup* inline_group() const { return inline_group_; }

  // The last things that ranks do: a barrier, and then nobody needs anything of the others any more.
  Steps all_here();
  Steps depart();

 private:
  enum class Kind : uint8_t { kMapped, kTwoLevel, kMessages };

  Kind kind_of_ranks() const;
  int run(Steps steps);
  int make_mapped();
  /// Finds out whether all ranks can read each other's memory.
  int make_reads();
  /// A group of these ranks, without a link yet.
  std::unique_ptr<LaneGroup> group_of(uint32_t rank, std::vector<uint32_t> members);
  void make_all();
  int measure(LaneGroup& group);
  int make_lanes();
  int make_two_level();

  const Places places_;
  const Kind kind_;
  std::unique_ptr<WindowCache> windows_;
  std::unique_ptr<ProcessReads> reads_;
  std::unique_ptr<MappedGroup> mapped_;  ///< of this rank's memory
  MappedGroup* inline_group_ = nullptr;
  std::unique_ptr<LaneGroup> lanes_;  ///< of all
  bool is_measured_ = false;          ///< lanes_ is
  std::unique_ptr<LaneGroup> column_;
  std::unique_ptr<TwoLevelGroup> two_level_;
};

}  // namespace nupa::ccl
