// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include <nupa/queue_pair.h>

#include "host/node.h"
#include "shm/receive_ring.h"

namespace nupa::core {

/// Opens the receive ring that `owner` shows. The result is not valid() if there is none. *no_memory, unless
/// `no_memory` is null, is set to true if the ring exists but this process has no address space for it.
shm::ReceiveRing open_ring(host::Peer& owner, shm::RecvRing& ring, bool* no_memory = nullptr);

/// A shared receive queue of an XRC domain (IBTA A14), of this process or of another one of its host and user.
struct DomainQueue {
  /// Returns whether the queue still exists. The result holds while the caller keeps its send lock: an owner that frees
  /// the queue waits for that lock.
  bool stands() const;

  host::PeerRef owner;
  shm::SrqShared* shared;
  uint32_t index;
  uint32_t number;
  uint64_t where;  ///< position of its ring
};
/// Finds queue `number` of domain `xrcd`; empty: there is none. Never waits. *may_come is set to true if the owner was
/// asked and has not answered yet; a later call may then find the queue.
std::optional<DomainQueue> find_domain_queue(host::Node& node, uint32_t number, uint64_t xrcd,
                                             bool* may_come = nullptr);

}  // namespace nupa::core
