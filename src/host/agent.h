#pragma once
#include <mutex>

#include <nupa/types.h>
#include "host/node.h"

namespace nupa::host {

/// The third way to a peer's memory, after a mapping and process_vm_*: its own service thread does it. Needed for
/// atomics on bytes that cannot be mapped (a processor cannot be atomic through a copy) and where the kernel forbids
/// cross-memory copies (other PID namespaces, seccomp, ptrace_scope). Slow, about two thread wake-ups.
///
/// The asker waits in the call. A service thread that waits for another process serves requests itself meanwhile, so
/// two that ask each other do not lock up.
class Agent {
 public:
  explicit Agent(host::Node& node) : node_(node) {}

  /// kSuccess; kRemOpErr: the memory is not there; kRetryExcErr: the peer died.
  WcStatus copy(host::Peer& peer, bool write, uint64_t remote, std::byte* local, uint64_t length);
  /// As copy(); kRemInvReqErr: no word that a processor can be atomic on. `operand` goes in as compare, add or new
  /// value and comes back as the value found.
  WcStatus atomic(host::Peer& peer, shm::AgentOp op, uint64_t remote, uint64_t* operand, uint64_t swap);

  /// Service thread: does what other processes asked of this one.
  void serve();

 private:
  shm::AgentShared* take();
  WcStatus ask(host::Peer& peer, shm::AgentShared& request);
  Result<std::byte*> bounce_of(uint32_t index);

  host::Node& node_;
  std::mutex mutex_;
  shm::Segment::Block bounce_[shm::kAgents];
};

}  // namespace nupa::host
