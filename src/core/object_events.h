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

/// Receives the events of the process that concern its verbs objects. The process passes them on and contains no rule
/// of an object.
class ObjectEvents {
 public:
  /// Destroyed after the service thread has stopped.
  virtual ~ObjectEvents() = default;
  /// Requests a try at this time or earlier (CLOCK_MONOTONIC ns; 0: soon). Any thread. Within a try it does nothing,
  /// since the try itself sets the time of the next one.
  virtual void wake_at(int64_t at_ns) = 0;
  /// Called by the service thread. `kinds` (shm::attention): the kinds whose bits have to be read.
  virtual void on_attention(uint32_t kinds) = 0;
  /// Called by the service thread.
  virtual void on_peer_exit(host::Peer& peer) = 0;
  /// Called in a forked child, whose objects belong to the parent. Takes no lock.
  virtual void in_child() = 0;
};

/// Creates the receiver of events for the objects in `objects` of the process that has `node`. The service thread holds
/// `copies` shared while it tries requests that may write the program's memory.
std::unique_ptr<ObjectEvents> make_object_events(host::Node& node, ObjectTables& objects,
                                                 PendingRequests<Qp, CompletionSink>& pending,
                                                 std::shared_mutex& copies);

}  // namespace nupa::core
