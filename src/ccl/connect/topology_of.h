// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>

#include "ccl/connect/peer_info.h"
#include "ccl/channel/topology.h"

namespace nupa::ccl {

/// Derives the topology from the peer info of all ranks. It is the same on all of them, except for the values of the
/// rank itself.
Topology topology_of(uint32_t rank, std::span<const PeerInfo> peer_infos);

}  // namespace nupa::ccl
