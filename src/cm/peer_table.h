#pragma once
#include <memory>
#include <vector>

#include "cm/introduction.h"
#include "cm/peer.h"

namespace nupa::cm {

/// The processes that were met, the dead among them: pointers to them stay valid. Under its owner's lock.
class PeerTable {
 public:
  /// The process that said hello. It is the same peer as before, unless that one was given up: what this process had of
  /// it is closed, and it is met again.
  Peer* adopt(Introduced introduced);
  /// Who has the slot and lives; null: nobody.
  Peer* find(uint32_t slot) const;
  std::vector<Peer*> alive() const;

  /// `cma`: whether copies from and to its memory work.
  static std::unique_ptr<Peer> make(Introduced introduced, bool cma);

 private:
  std::vector<std::unique_ptr<Peer>> peers_;
};

}  // namespace nupa::cm
