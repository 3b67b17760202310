// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Packets of this port for `nupa capture` (capture/tap.h). Called only while a capture is attached. Any thread.

#include "base/piece.h"
#include "net/udp_socket.h"
#include "transport/roce/wire/icrc.h"

namespace nupa::roce {

/// A packet that is about to leave.
struct SentPacket {
  const Route& route;
  const net::IpFields& fields;
  uint32_t qp;  ///< the queue pair that sends
  uint16_t identification;
  bool unchecked;  ///< its CRC is omitted
};
/// `parts`: the datagram.
[[gnu::cold]] void record_sent(const SentPacket& sent, const base::Piece* parts, uint32_t part_count);
/// A packet that arrived at `port`, before any check of it.
[[gnu::cold]] void record_received(const net::UdpSocket::Received& received, uint16_t port, const std::byte* data,
                                   uint32_t length);

}  // namespace nupa::roce
