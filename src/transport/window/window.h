#pragma once
/// The shm transport, direct mode: both ends are processes of one user on one host. The initiator's thread does all
/// the work in post(): it plays the responder's part on the peer's shared objects and copies straight into or out
/// of the peer's memory. No other thread runs and, once the first request has found its way, no system call is made.

#include "cm/node.h"
#include "core/seam/endpoint.h"
#include "core/seam/qp_context.h"
#include "host/peer_memory.h"

namespace nupa::window {

class Window {
 public:
  Window(cm::Node& node, host::PeerMemories& memories) : node_(node), memories_(memories) {}

  /// RC, UC, XRC. `vector` and `remote_qpn` name the peer, which need not exist yet.
  std::unique_ptr<core::Endpoint> connect(core::QpContext& context, const AddressVector& vector, uint32_t remote_qpn);

  /// Whether the other end of a connection is one that this transport reaches: a process of this user on this host.
  bool reaches(const AddressVector& vector, uint32_t remote_qpn);
  /// UD. `due`: the event of a receiver, which is raised when the sender has its own completion.
  std::unique_ptr<core::DatagramSender> datagrams(core::QpContext& context, cm::DueEvent& due);
  /// Finds the process that owns queue pair `qpn` and has the GID of `vector` (if it names one); waits at most `wait`.
  /// EHOSTUNREACH, EACCES, ETIMEDOUT as cm::Node::connect.
  Result<cm::Peer*> find_peer(uint32_t qpn, const AddressVector& vector, std::chrono::milliseconds wait);

  /// True if `gid` is one of this host's, as this process knows them.
  bool has_gid(const Gid& gid) const;
  cm::Node& node() { return node_; }
  host::PeerMemories& memories() { return memories_; }

 private:
  cm::Node& node_;
  host::PeerMemories& memories_;
};

}  // namespace nupa::window
