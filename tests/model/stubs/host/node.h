// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Found instead of src/host/node.h by code that is checked in tests/model: one process.
#include "host/peer.h"

namespace nupa::host {

class Node {
 public:
  explicit Node(Peer& self) : self_(self) {}
  uint32_t slot() const { return 5; }
  Peer& self() { return self_; }

 private:
  Peer& self_;
};

}  // namespace nupa::host
