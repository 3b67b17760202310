// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <vector>

#include "host/handshake.h"
#include "host/peer.h"

namespace nupa::host {

/// The peers of this process, until they are removed. Under its owner's lock.
class PeerTable {
 public:
  /// Returns the process that sent the hello. It is the same peer as before, unless that one was marked as exited: then
  /// its descriptors are closed, and the process becomes a new peer.
  PeerRef adopt(Handshake handshake);
  /// The process that has the slot, as its first or a further one, and is alive. Null: none.
  PeerRef find(uint32_t slot) const;
  /// The process that sent this hello, if it is a peer already. Null otherwise.
  PeerRef find(const Message& hello) const;
  std::vector<PeerRef> alive() const;
  size_t size() const { return peers_.size(); }
  /// Removes an exited process. Existing PeerRefs keep it.
  void forget(const Peer& peer);

  /// `cma`: true if copies from and to its memory work.
  static PeerRef make(Handshake handshake, bool cma);

 private:
  std::vector<PeerRef> peers_;
};

}  // namespace nupa::host
