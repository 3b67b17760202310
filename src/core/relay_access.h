// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Relays of queue pairs, for services of this program that hold queue pairs by the public API.

#include <nupa/queue_pair.h>

#include "core/seam/relay.h"

namespace nupa::core {

/// Gives the requests of the queue pair's peer to `relay`, which outlives the queue pair. Called in RESET or INIT. The
/// transport must serve requests by core::Responder: packets do, shared tables do not.
void set_relay(QueuePair& qp, Relay& relay);

/// The send lock of a queue pair, under which its relay is called and may be changed.
class RelayLock {
 public:
  explicit RelayLock(QueuePair& qp) : qp_(qp) { qp_.post_begin(); }
  ~RelayLock() { qp_.post_end(); }
  RelayLock(const RelayLock&) = delete;
  RelayLock& operator=(const RelayLock&) = delete;
  /// The relay has more to report: sends the answers that are due.
  void answer();
  /// True if the peer has no receive for the oldest request that was posted.
  bool awaits_receive() const;

 private:
  QueuePair& qp_;
};

}  // namespace nupa::core
