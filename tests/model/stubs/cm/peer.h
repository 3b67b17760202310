// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Found instead of src/cm/peer.h by code that is checked in tests/model: a process that never dies.
#include <memory>

#include "segment/segment.h"

namespace nupa::cm {

class Peer : public ::std::enable_shared_from_this<Peer> {
 public:
  explicit Peer(const segment::Tables& tables) : tables_(tables) {}
  const segment::Tables& tables() const { return tables_; }
  uint64_t instance() const { return 1; }
  bool alive() const { return true; }
  bool is_self() const { return true; }
  static int pid() { return 0; }

 private:
  segment::Tables tables_;
};

using PeerRef = ::std::shared_ptr<Peer>;

}  // namespace nupa::cm
