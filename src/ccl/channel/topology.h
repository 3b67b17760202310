// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "ccl/coroutine/waiter.h"

namespace nupa::ccl {

/// The ranks of a communicator and their nodes, the same on all ranks. A node (`memory`) is a set of ranks that map
/// each other's arenas: those of one user on one host.
struct Topology {
  uint32_t rank = 0;
  uint32_t ranks = 0;
  /// The nodes, ordered by their first ranks. The ranks of each are in order.
  std::vector<std::vector<uint32_t>> memories;
  uint32_t memory = 0;       ///< the index of this rank's node in `memories`
  uint32_t local_index = 0;  ///< the index of this rank on its node
  WaitRules rules;

  bool is_one_memory() const { return memories.size() == 1; }
  const std::vector<uint32_t>& local() const { return memories[memory]; }
  /// The number of ranks on the smallest and on the largest node.
  uint32_t fewest() const;
  uint32_t most() const;
};

}  // namespace nupa::ccl
