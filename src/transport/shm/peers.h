// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>

#include "core/seam/transport.h"

namespace nupa::shm_transport {

/// The time in which a process of this host has to answer. After it the process counts as stopped.
constexpr std::chrono::milliseconds kAnswerLimit{100};

/// A queue pair of a process of this host.
struct Found {
  host::PeerRef peer;
  uint32_t qp_index;  ///< index in the peer's queue_pairs(), mapped
};

/// The processes that share memory with this one, for all endpoints. Any thread.
class Peers {
 public:
  explicit Peers(core::ProcessContext& process) : process_(process) {}

  /// Finds the process that owns queue pair `qpn` and has the GID of `vector` (if it names one); waits at most `wait`.
  /// EHOSTUNREACH, EACCES, ETIMEDOUT, EMFILE as host::Node::connect; ENOMEM: the queue pair's tables cannot be mapped.
  Result<Found> find(uint32_t qpn, const AddressVector& vector, std::chrono::milliseconds wait);
  /// Returns whether `gid` is an address of this host, as this process has read them.
  bool has_gid(const Gid& gid) const;
  host::Node& node() { return process_.node(); }
  host::PeerMemories& memories() { return process_.memories(); }

 private:
  core::ProcessContext& process_;
};

}  // namespace nupa::shm_transport
