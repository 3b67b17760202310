// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/mads.h"

#include <utility>

namespace nupa::pool {

Result<std::unique_ptr<core::MadSocket>> ProbeSocket::open(Engine& engine) {
  auto socket = std::make_unique<ProbeSocket>(engine);
  if (auto opened = socket->arrived_.open(); !opened) return tl::unexpected(opened.error());
  ProbeSocket* const mine = socket.get();
  engine.set_probe_handler([mine](const core::MadDatagram& datagram) {
    std::lock_guard lock(mine->mutex_);
    if (mine->datagrams_.size() >= kMostWaiting) return;
    mine->datagrams_.push_back(datagram);
    mine->arrived_.signal();
  });
  return socket;
}

ProbeSocket::~ProbeSocket() {
  engine_.set_probe_handler(nullptr);
  arrived_.close();
}

void ProbeSocket::receive(const core::MadHandler& handler) {
  arrived_.take();
  std::deque<core::MadDatagram> arrived;
  {
    std::lock_guard lock(mutex_);
    arrived.swap(datagrams_);
  }
  for (const core::MadDatagram& datagram : arrived) handler(datagram);
}

void ProbeSocket::send(const core::MadDatagram& datagram) {
  const auto process = engine_.mad_process(datagram.remote);
  if (process && engine_.send_mad(*process, datagram, true)) return;
  if (process) return;
  // The record is free, or the address was removed: the process has ended.
  std::lock_guard lock(mutex_);
  refusals_.push_back(datagram.remote);
  arrived_.signal();
}

std::optional<core::MadPeer> ProbeSocket::next_refusal() {
  std::lock_guard lock(mutex_);
  if (refusals_.empty()) return std::nullopt;
  const core::MadPeer refused = refusals_.front();
  refusals_.pop_front();
  return refused;
}

}  // namespace nupa::pool
