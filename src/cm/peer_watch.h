#pragma once
#include <functional>
#include <map>
#include <optional>

#include "cm/engine/engine.h"
#include "cm/engine/probe.h"
#include "core/seam/mad_carrier.h"

namespace nupa::cm {

/// Asks the processes of other hosts that connections lead to whether they live (cm/engine/probe.h). Its socket
/// hears also what their hosts say of ports that nobody has, which the transport's own must not. The service thread's.
class PeerWatch {
 public:
  explicit PeerWatch(std::unique_ptr<core::MadSocket> socket) : socket_(std::move(socket)) {}
  int fd() const { return socket_->fd(); }

  using Gone = std::function<void(const Gid& remote, uint16_t port)>;
  using Doubted = std::function<void(const Gid& remote, uint16_t port)>;
  /// Asks those of `ways`, and forgets others. Returns when it wants to be called again.
  int64_t ask(const std::vector<Way>& ways, int64_t now, const Gone& gone);
  /// Something came. `doubted`: a process may not be the one that connections were made with.
  void receive(const Gone& gone, const Doubted& doubted);

 private:
  using RemoteProcess = std::pair<decltype(Gid::raw), uint16_t>;
  void lost(const RemoteProcess& process, const Gone& gone);

  const std::unique_ptr<core::MadSocket> socket_;
  std::map<RemoteProcess, PeerPulse> processes_;
  int64_t next_ns_ = 0;
};

}  // namespace nupa::cm
