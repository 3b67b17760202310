// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <map>
#include <optional>

#include "cm/engine/engine.h"
#include "cm/engine/probe.h"
#include "core/seam/mad_carrier.h"

namespace nupa::cm {

/// Probes the processes of other hosts that have connections with this one (cm/engine/probe.h). It has a separate
/// socket, because it also receives the ICMP errors for closed ports, which the transport's socket must not get.
/// Service thread only.
class PeerWatch {
 public:
  explicit PeerWatch(std::unique_ptr<core::MadSocket> socket) : socket_(std::move(socket)) {}
  int fd() const { return socket_->fd(); }

  using Gone = std::function<void(const Gid& remote, uint16_t port)>;
  using Doubted = std::function<void(const Gid& remote, uint16_t port)>;
  /// Probes the processes of `ways` and drops all others. Returns the time of its next call.
  int64_t ask(const std::vector<Way>& ways, int64_t now, const Gone& gone);
  /// Handles arrived datagrams. Calls `doubted` if another process may have replaced the one that connections were made
  /// with.
  void receive(const Gone& gone, const Doubted& doubted);

 private:
  using RemoteProcess = std::pair<decltype(Gid::raw), uint16_t>;
  void lost(const RemoteProcess& process, const Gone& gone);

  const std::unique_ptr<core::MadSocket> socket_;
  std::map<RemoteProcess, PeerPulse> processes_;
  int64_t next_ns_ = 0;
};

}  // namespace nupa::cm
