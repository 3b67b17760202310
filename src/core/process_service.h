// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <span>

#include "host/node.h"

namespace nupa::core {

class Process;

/// A service that runs in each process that has a device open, on the node's service thread, above the objects: the
/// communication manager. The process starts it when its transports are open, passes calls on, and takes it down before
/// anything that the service uses. Its own timers and watches are the node's loop's.
class ProcessService {
 public:
  virtual ~ProcessService() = default;
  /// By the thread that opens the first device; the service thread does not run yet. An error is that of the open.
  virtual Result<void> start() = 0;

  // The service thread's calls. That thread has ended when the destructor is called.

  /// A process of this host sent it by Node::send_payload().
  virtual void on_payload(host::Peer& peer, const host::Payload& payload) = 0;
  /// A process of this host ended.
  virtual void on_peer_gone(host::Peer& peer) = 0;
};

/// A service that exists. The address of its entry identifies it: see Process::find_service().
struct ServiceEntry {
  /// `process` outlives the service.
  std::unique_ptr<ProcessService> (*make)(Process& process);
};
/// Defined by the composition root.
std::span<const ServiceEntry* const> service_entries();

}  // namespace nupa::core
