// SPDX-License-Identifier: Apache-2.0
#include "ccl/connect/topology_of.h"

#include <algorithm>
#include <bit>

namespace nupa::ccl {
namespace {

/// How long a rank spins before it sleeps, if it has a core for itself, and how long it yields, if ranks share cores. A
/// yield takes less processor time than a wake-up, and many other ranks may run meanwhile.
constexpr int64_t kSpinNs = 100'000;
constexpr int64_t kYieldNs = 1'000'000;

bool share_cores(uint32_t rank, std::span<const PeerInfo> peer_infos) {
  PeerInfo::Processors all{};
  size_t ranks = 0;
  for (const PeerInfo& peer_info : peer_infos) {
    if (peer_info.host != peer_infos[rank].host) continue;
    ++ranks;
    for (size_t i = 0; i < all.size(); ++i) all[i] |= peer_info.processors[i];
  }
  size_t processors = 0;
  for (const uint64_t word : all) processors += static_cast<size_t>(std::popcount(word));
  return ranks > processors;
}

}  // namespace

Topology topology_of(uint32_t rank, std::span<const PeerInfo> peer_infos) {
  Topology topology;
  topology.rank = rank;
  topology.ranks = static_cast<uint32_t>(peer_infos.size());
  for (uint32_t other = 0; other < peer_infos.size(); ++other) {
    const auto found = std::find_if(topology.memories.begin(), topology.memories.end(), [&](const auto& memory) {
      return peer_infos[memory.front()].shares_memory_with(peer_infos[other]);
    });
    auto& memory = found == topology.memories.end() ? topology.memories.emplace_back() : *found;
    if (other == rank) {
      topology.memory = static_cast<uint32_t>(&memory - topology.memories.data());
      topology.local_index = static_cast<uint32_t>(memory.size());
    }
    memory.push_back(other);
  }
  topology.rules.shares_cores = share_cores(rank, peer_infos);
  topology.rules.spin_ns = topology.rules.shares_cores ? kYieldNs : kSpinNs;
  return topology;
}

}  // namespace nupa::ccl
