#include "ccl/comm/topology.h"

#include <algorithm>
#include <bit>

namespace nupa::ccl {
namespace {

/// A rank that has a core for itself may spin so long before it sleeps.
constexpr int64_t kSpinNs = 100'000;

bool share_cores(uint32_t rank, std::span<const RankCard> cards) {
  RankCard::Processors all{};
  size_t ranks = 0;
  for (const RankCard& card : cards) {
    if (card.host != cards[rank].host) continue;
    ++ranks;
    for (size_t i = 0; i < all.size(); ++i) all[i] |= card.processors[i];
  }
  size_t processors = 0;
  for (const uint64_t word : all) processors += static_cast<size_t>(std::popcount(word));
  return ranks > processors;
}

}  // namespace

Topology topology_of(uint32_t rank, std::span<const RankCard> cards) {
  Topology topology;
  topology.rank = rank;
  topology.ranks = static_cast<uint32_t>(cards.size());
  for (uint32_t other = 0; other < cards.size(); ++other) {
    const auto is_same = [&](uint32_t leader) {
      return leader == other || cards[leader].shares_memory_with(cards[other]);
    };
    if (other == rank || cards[other].shares_memory_with(cards[rank])) {
      if (other == rank) topology.local_index = static_cast<uint32_t>(topology.local.size());
      topology.local.push_back(other);
    }
    if (std::none_of(topology.leaders.begin(), topology.leaders.end(), is_same)) topology.leaders.push_back(other);
  }
  const auto own = std::find(topology.leaders.begin(), topology.leaders.end(), topology.local.front());
  topology.leader_index = static_cast<uint32_t>(own - topology.leaders.begin());
  topology.rules.shares_cores = share_cores(rank, cards);
  topology.rules.spin_ns = topology.rules.shares_cores ? 0 : kSpinNs;
  return topology;
}

}  // namespace nupa::ccl
