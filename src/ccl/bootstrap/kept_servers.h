// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ccl/bootstrap/rendezvous.h"

namespace nupa::ccl {

/// Starts another rendezvous server in this process, which runs until the process exits.
Result<UniqueId> start_server_here();
/// The same as join_rendezvous(), in the next rendezvous of this id that is not over.
Result<RendezvousResult> join_next_rendezvous(const UniqueId& id, uint32_t rank, uint32_t world,
                                              const PeerInfoBytes& peer_info, int64_t limit_ns);

}  // namespace nupa::ccl
