// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "net/udp_socket.h"
#include "progress/descriptors.h"
#include "progress/packet_source.h"
#include "shm/layout.h"
#include "transport/roce/port/burst.h"

namespace nupa::roce {

/// A UDP port where packets to a further slot of this process arrive. What its queue pairs send leaves from the first
/// port; a refusal leaves from here, since a peer believes it of the port that it sent to.
class FurtherPort {
 public:
  explicit FurtherPort(net::UdpSocket opened) : sockets_(one(std::move(opened))), burst_(sockets_, false) {}

  const net::UdpSocket& socket() const { return sockets_.front(); }
  Burst& burst() { return burst_; }

 private:
  static std::vector<net::UdpSocket> one(net::UdpSocket opened) {
    std::vector<net::UdpSocket> sockets;
    sockets.push_back(std::move(opened));
    return sockets;
  }

  const std::vector<net::UdpSocket> sockets_;  ///< one, in the form that a burst wants
  Burst burst_;
};

/// The ports of the further slots. A poll looks at them each time if something came by one of them last, else now and
/// then. Under the lock of the port's turns.
class FurtherPorts {
 public:
  bool empty() const { return ports_.empty(); }
  /// Throws std::bad_alloc.
  void add(std::unique_ptr<FurtherPort> port) { ports_.push_back(std::move(port)); }
  void drop_last() { ports_.pop_back(); }
  void clear() { ports_.clear(); }

  /// Looks for packets by `receive_from(socket)`, at those where some wait.
  template <class ReceiveFrom>
  [[gnu::noinline]] uint32_t receive(progress::Receiver receiver, ReceiveFrom&& receive_from) {
    if (receiver == progress::Receiver::kPoller && !was_last_ && ++looks_ % kLooksElsewhere != 0) return 0;
    std::array<pollfd, shm::kMaxBanks> waiting;
    const size_t count = std::min(ports_.size(), waiting.size());
    for (size_t i = 0; i < count; ++i) waiting[i] = {ports_[i]->socket().fd(), POLLIN, 0};
    const auto found =
        progress::wait_descriptors({waiting.data(), count}, progress::Deadline::at(0), progress::Signals::kIgnore);
    uint32_t packets = 0;
    for (size_t i = 0; i < count && found && *found > 0; ++i)
      if ((waiting[i].revents & POLLIN) != 0) packets += receive_from(ports_[i]->socket());
    was_last_ = packets > 0;
    return packets;
  }
  /// Receives by them bring what datagrams tell of.
  void tell_more() {
    for (const auto& each : ports_) each->socket().tell_more();
  }
  /// What leaves from that port; null: it is none of these.
  Burst* burst_from(uint16_t port) {
    for (const auto& each : ports_)
      if (each->socket().port() == port) return &each->burst();
    return nullptr;
  }

 private:
  static constexpr uint32_t kLooksElsewhere = 4;  ///< of a program's looks one in so many

  std::vector<std::unique_ptr<FurtherPort>> ports_;
  bool was_last_ = false;  ///< something came by one of them when they were looked at last
  uint32_t looks_ = 0;
};

}  // namespace nupa::roce
