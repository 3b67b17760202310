#pragma once
#include <span>

#include "ccl/connect/peer_info.h"
#include "ccl/channel/topology.h"

namespace nupa::ccl {

/// By what the ranks of a communicator tell of themselves; the same on all of them but for what is this rank's.
Topology topology_of(uint32_t rank, std::span<const RankCard> cards);

}  // namespace nupa::ccl
