// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <set>

#include "cm/node.h"
#include "core/object_tables.h"
#include "core/pending_requests.h"

namespace nupa::core {

/// What the node's service thread does for the objects of this process: it answers their attention bits, tries requests
/// that wait, goes on with errors of queue pairs that were busy, and takes back what a dead process held of them.
/// Service thread only. It takes the objects' mutex; requests may write the program's memory, so on_attention() and
/// on_tick() are called with Remapper::copy_mutex() shared.
class ObjectService {
 public:
  ObjectService(cm::Node& node, ObjectTables& objects, PendingRequests<Qp, Cq>& pending)
      : node_(node), objects_(objects), pending_(pending) {}

  /// `kinds`: segment::attention, those whose bits are to be looked at.
  void on_attention(uint32_t kinds);
  void on_peer_gone(cm::Peer& peer);
  /// Returns when to call next (CLOCK_MONOTONIC ns), INT64_MAX: nothing waits.
  int64_t on_tick(int64_t now_ns);

 private:
  const segment::Tables& tables() { return node_.segment().tables(); }
  void recover_from(cm::Peer& peer);

  cm::Node& node_;
  ObjectTables& objects_;
  PendingRequests<Qp, Cq>& pending_;
  std::set<uint32_t> failed_;  ///< queue pairs whose error is still to be handled
};

}  // namespace nupa::core
