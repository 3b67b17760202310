#pragma once
#include <span>
#include <vector>

#include "ccl/comm/card.h"
#include "ccl/waiter.h"

namespace nupa::ccl {

/// Which ranks of a communicator run where, as all of them see it.
struct Topology {
  uint32_t rank = 0;
  uint32_t ranks = 0;
  /// Those that share memory with this one, itself among them, in their order.
  std::vector<uint32_t> local;
  /// The first rank of each set of ranks that share memory, in order.
  std::vector<uint32_t> leaders;
  uint32_t local_index = 0;   ///< of this rank in `local`
  uint32_t leader_index = 0;  ///< of local[0] in `leaders`
  WaitRules rules;

  bool is_one_memory() const { return leaders.size() == 1; }
};

Topology topology_of(uint32_t rank, std::span<const RankCard> cards);

}  // namespace nupa::ccl
