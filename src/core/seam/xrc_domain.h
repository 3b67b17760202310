// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include <nupa/queue_pair.h>

#include "host/node.h"
#include "shm/receive_ring.h"

namespace nupa::core {

/// A receive queue as its owner shows it; not valid(): there is none.
/// `no_memory`, unless it is null: there is a queue, but no address space for it.
shm::ReceiveRing open_ring(host::Peer& owner, shm::RecvRing& ring, bool* no_memory = nullptr);

/// A shared receive queue of an XRC domain (IBTA A14), of this process or of another one of its host and user.
struct DomainQueue {
  /// Whether it is still there. What this says holds until the send lock is let go for which an owner waits who frees
  /// the queue.
  bool stands() const;

  host::PeerRef owner;
  shm::SrqShared* shared;
  uint32_t index;
  uint32_t number;
  uint64_t where;  ///< of its ring
};
/// The queue `number` of domain `xrcd`; empty: there is none. Never waits. *may_come: its process was asked and does
/// not answer yet; a later call may find the queue.
std::optional<DomainQueue> find_domain_queue(host::Node& node, uint32_t number, uint64_t xrcd,
                                             bool* may_come = nullptr);

}  // namespace nupa::core
