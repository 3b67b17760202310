// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <span>

#include "host/node.h"

namespace nupa::core {

class Process;

/// A service that runs above the objects in each process that has a device open, on the node's service thread: the
/// communication manager. The process starts it when its transports are open, passes calls on to it, and destroys it
/// before anything that the service uses. The service's timers and watches belong to the node's event loop.
class ProcessService {
 public:
  virtual ~ProcessService() = default;
  /// Called by the thread that opens the first device, before the service thread runs. An error makes the open fail.
  virtual Result<void> start() = 0;

  // The service thread calls these. It has ended when the destructor is called.

  /// A process of this host sent `payload` by Node::send_payload().
  virtual void on_payload(host::Peer& peer, const host::Payload& payload) = 0;
  /// A process of this host exited.
  virtual void on_peer_exit(host::Peer& peer) = 0;
};

/// A service that can be made. The address of its entry identifies it: see Process::find_service().
struct ServiceEntry {
  /// `process` outlives the service.
  std::unique_ptr<ProcessService> (*make)(Process& process);
};
/// The composition root defines this.
std::span<const ServiceEntry* const> service_entries();

}  // namespace nupa::core
