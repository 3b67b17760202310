// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Management datagrams by the pool: a port is the record of a process in its host's table, plus one.
#include <deque>
#include <memory>
#include <mutex>

#include "core/seam/mad_carrier.h"
#include "progress/wake_up.h"
#include "transport/pool/engine.h"

namespace nupa::pool {

/// A socket for probes. Its descriptor is an eventfd that is signalled for each arrival.
class ProbeSocket final : public core::MadSocket {
 public:
  static Result<std::unique_ptr<core::MadSocket>> open(Engine& engine);
  explicit ProbeSocket(Engine& engine) : engine_(engine) {}
  ~ProbeSocket() override;

  int fd() const override { return arrived_.fd(); }
  void receive(const core::MadHandler& handler) override;
  void send(const core::MadDatagram& datagram) override;
  std::optional<core::MadPeer> next_refusal() override;

 private:
  /// Datagrams that wait to be received. More are dropped.
  static constexpr size_t kMostWaiting = 1024;

  Engine& engine_;
  progress::WakeUp arrived_;
  std::mutex mutex_;  ///< leaf; taken within a turn
  std::deque<core::MadDatagram> datagrams_;
  std::deque<core::MadPeer> refusals_;
};

}  // namespace nupa::pool
