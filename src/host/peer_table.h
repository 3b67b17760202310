#pragma once
#include <memory>
#include <vector>

#include "host/introduction.h"
#include "host/peer.h"

namespace nupa::host {

/// The processes that were met, until they are forgotten. Under its owner's lock.
class PeerTable {
 public:
  /// The process that said hello. It is the same peer as before, unless that one was given up: what this process had of
  /// it is closed, and it is met again.
  PeerRef adopt(Introduced introduced);
  /// Who has the slot, as its first or a further one, and lives; null: nobody.
  PeerRef find(uint32_t slot) const;
  /// The one that said this hello, if it was met before; else null.
  PeerRef find(const Message& hello) const;
  std::vector<PeerRef> alive() const;
  size_t size() const { return peers_.size(); }
  /// It is gone: who has a PeerRef keeps it, nobody else.
  void forget(const Peer& peer);

  /// `cma`: whether copies from and to its memory work.
  static PeerRef make(Introduced introduced, bool cma);

 private:
  std::vector<PeerRef> peers_;
};

}  // namespace nupa::host
