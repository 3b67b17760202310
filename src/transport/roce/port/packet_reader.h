// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "net/udp_socket.h"
#include "transport/roce/port/channel.h"
#include "transport/roce/port/port_counters.h"
#include "transport/roce/wire/icrc.h"
#include "transport/roce/wire/wire.h"

namespace nupa::roce {

/// A packet as it arrived: where it lies in the buffer, and what the kernel says of it.
struct Arrival {
  const std::byte* data;
  uint32_t length;
  uint32_t position;  ///< among those that the kernel brought together
  const net::UdpSocket::Received& received;
  uint16_t port;  ///< of this process, that it came to
  int64_t now;
};

/// Takes messages from sockets, and makes packets of them: cuts what the kernel put together, checks the invariant CRC,
/// and decodes the headers. Under the lock of the port's turns.
class PacketReader {
 public:
  /// Counts what it drops.
  explicit PacketReader(PortCounters& counters);

  /// False: nothing is there.
  bool receive(const net::UdpSocket& socket, net::UdpSocket::Received* received) {
    return socket.receive(buffer_, net::UdpSocket::kMaxReceive, received);
  }
  /// Calls `deliver(arrival)` for each packet of what was received last, at that port of this process.
  template <class Deliver>
  void each(const net::UdpSocket::Received& received, uint16_t port, int64_t now, Deliver&& deliver) const {
    uint32_t position = 0;
    for (uint32_t at = 0; at < received.length; at += received.segment, ++position)
      deliver(Arrival{buffer_ + at, std::min(received.segment, received.length - at), position, received, port, now});
  }
  /// `arrival`: has a packet's length. `channel`: that it is for; null: no certain one. False: no packet of the
  /// protocol, or one that something has changed on its way.
  bool read(const Arrival& arrival, const Channel* channel, Packet* packet);

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  PortCounters& counters_;
  std::unique_ptr<Line[]> lines_;
  std::byte* const buffer_;  ///< in them, so that most payloads begin at a multiple of 16
  RouteStates routes_;
};

}  // namespace nupa::roce
