// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <shared_mutex>

#include "core/object_tables.h"
#include "core/pending_requests.h"
#include "host/node.h"

namespace nupa::core {

class CompletionSink;

/// What happens to the process and concerns its verbs objects. The process passes it on and knows no object's rules.
class ObjectEvents {
 public:
  /// Destroyed when the service thread has stopped.
  virtual ~ObjectEvents() = default;
  /// There is something to try, at that time at the latest (CLOCK_MONOTONIC ns; 0: soon). Any thread; within a try it
  /// does nothing, since that says when to come again.
  virtual void wake_at(int64_t at_ns) = 0;
  /// Service thread. `kinds`: shm::attention, those whose bits are to be looked at.
  virtual void on_attention(uint32_t kinds) = 0;
  /// Service thread.
  virtual void on_peer_gone(host::Peer& peer) = 0;
  /// In a forked child: the objects are the parent's. Takes no lock.
  virtual void in_child() = 0;
};

/// For the objects in `objects`, of the process that has `node`. `copies` is held shared while requests that may write
/// the program's memory are tried.
std::unique_ptr<ObjectEvents> make_object_events(host::Node& node, ObjectTables& objects,
                                                 PendingRequests<Qp, CompletionSink>& pending,
                                                 std::shared_mutex& copies);

}  // namespace nupa::core
