// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "capture/tap.h"
#include "net/udp_socket.h"
#include "transport/roce/port/captured.h"
#include "transport/roce/port/qp_receiver.h"
#include "transport/roce/port/port_counters.h"
#include "transport/roce/wire/icrc.h"
#include "transport/roce/wire/wire.h"

namespace nupa::roce {

/// A packet as it arrived: its place in the buffer, and what the kernel reports about it.
struct Arrival {
  const std::byte* data;
  uint32_t length;
  uint32_t position;  ///< among the packets that the kernel delivered together
  const net::UdpSocket::Received& received;
  uint16_t port;  ///< the port of this process that it arrived at
  int64_t now;
};

/// Receives messages from sockets and makes packets of them: divides what the kernel coalesced, checks the invariant
/// CRC, and decodes the headers. Under the poller's lock.
class PacketReader {
 public:
  /// `counters`: count the packets that it drops.
  explicit PacketReader(PortCounters& counters);

  /// Returns false if no message is there.
  bool receive(const net::UdpSocket& socket, net::UdpSocket::Received* received) {
    return socket.receive(buffer_, net::UdpSocket::kMaxReceive, received);
  }
  /// Calls `deliver(arrival)` for each packet of the last message, which arrived at `port` of this process.
  template <class Deliver>
  void each(const net::UdpSocket::Received& received, uint16_t port, int64_t now, Deliver&& deliver) const {
    uint32_t position = 0;
    for (uint32_t at = 0; at < received.length; at += received.segment, ++position) {
      const uint32_t length = std::min(received.segment, received.length - at);
      if (capture::is_on()) [[unlikely]]
        record_received(received, port, buffer_ + at, length);
      deliver(Arrival{buffer_ + at, length, position, received, port, now});
    }
  }
  /// `arrival`: has a valid length. `queue_pair`: the queue pair that it is for; null: not known. Returns false if it
  /// is not a packet of the protocol, or was changed on its way.
  bool read(const Arrival& arrival, const QpReceiver* queue_pair, Packet* packet);

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  PortCounters& counters_;
  std::unique_ptr<Line[]> lines_;
  std::byte* const buffer_;  ///< in lines_, so that most payloads begin at a multiple of 16
  RouteStates routes_;
};

}  // namespace nupa::roce
