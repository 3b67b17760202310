#pragma once
#include <cstdint>
#include <vector>

#include "ccl/coroutine/waiter.h"

namespace nupa::ccl {

/// Which ranks of a communicator run where, as all of them see it. A memory: ranks that map each other's, which is
/// those of one user on one host.
struct Topology {
  uint32_t rank = 0;
  uint32_t ranks = 0;
  /// By their first ranks; the ranks of each in their order.
  std::vector<std::vector<uint32_t>> memories;
  uint32_t memory = 0;       ///< of this rank in `memories`
  uint32_t local_index = 0;  ///< of this rank in its memory
  WaitRules rules;

  bool is_one_memory() const { return memories.size() == 1; }
  const std::vector<uint32_t>& local() const { return memories[memory]; }
  /// How many ranks the smallest and the largest memory have.
  uint32_t fewest() const;
  uint32_t most() const;
};

}  // namespace nupa::ccl
