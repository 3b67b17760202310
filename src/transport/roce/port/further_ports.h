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
#include "transport/roce/port/transmit_batch.h"

namespace nupa::roce {

/// A UDP port that receives the packets to a further slot of this process. Its queue pairs send from the first port. A
/// report of a missing queue pair leaves from here, since a peer accepts it only from the port that it sent to.
class FurtherPort {
 public:
  explicit FurtherPort(net::UdpSocket opened) : sockets_(one(std::move(opened))), batch_(sockets_, false) {}

  const net::UdpSocket& socket() const { return sockets_.front(); }
  TransmitBatch& batch() { return batch_; }

 private:
  static std::vector<net::UdpSocket> one(net::UdpSocket opened) {
    std::vector<net::UdpSocket> sockets;
    sockets.push_back(std::move(opened));
    return sockets;
  }

  const std::vector<net::UdpSocket> sockets_;  ///< one socket, in the form that TransmitBatch takes
  TransmitBatch batch_;
};

/// The ports of the further slots. A poll looks at them each time if the last look at them found something, otherwise
/// at intervals. Under the poller's lock.
class FurtherPorts {
 public:
  bool empty() const { return ports_.empty(); }
  /// Throws std::bad_alloc.
  void add(std::unique_ptr<FurtherPort> port) { ports_.push_back(std::move(port)); }
  void drop_last() { ports_.pop_back(); }
  void clear() { ports_.clear(); }

  /// Calls `receive_from(socket)` for the sockets that have packets.
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
  /// Makes receives report hop limit and flow label, too.
  void report_more() {
    for (const auto& each : ports_) each->socket().report_more();
  }
  /// Returns the batch for packets from that port; null if it is none of these.
  TransmitBatch* batch_from(uint16_t port) {
    for (const auto& each : ports_)
      if (each->socket().port() == port) return &each->batch();
    return nullptr;
  }

 private:
  static constexpr uint32_t kLooksElsewhere = 4;  ///< one of this many looks of a program is at these ports

  std::vector<std::unique_ptr<FurtherPort>> ports_;
  bool was_last_ = false;  ///< the last look at them found something
  uint32_t looks_ = 0;
};

}  // namespace nupa::roce
