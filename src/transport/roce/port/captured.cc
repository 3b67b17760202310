// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/captured.h"

#include "capture/tap.h"

namespace nupa::roce {
namespace {

constexpr std::string_view kName = "roce";
/// The congestion bits of packets that leave: ECT(0), RFC 3168.
constexpr uint8_t kCapable = 2;

}  // namespace

void record_sent(const SentPacket& sent, const base::Piece* parts, uint32_t part_count) {
  capture::Packet packet;
  packet.datagram = {.source = sent.route.source,
                     .destination = sent.route.destination,
                     .source_port = sent.route.source_port,
                     .destination_port = sent.route.destination_port,
                     .traffic_class = static_cast<uint8_t>(sent.fields.traffic_class | kCapable),
                     .hop_limit = sent.fields.hop_limit,
                     .flow_label = sent.fields.flow_label,
                     .identification = sent.identification};
  packet.transport = kName;
  packet.direction = capture::Direction::kOutbound;
  packet.qp = sent.qp;
  packet.flags = capture::frame_flag::kKnownId;
  if (sent.unchecked) packet.flags |= capture::frame_flag::kWithoutCrc;
  capture::record(packet, parts, part_count);
}

void record_received(const net::UdpSocket::Received& received, uint16_t port, const std::byte* data, uint32_t length) {
  if (length < kShortestPacket) return;
  capture::Packet packet;
  packet.datagram = {.source = received.from.address,
                     .destination = received.to,
                     .source_port = received.from.port,
                     .destination_port = port,
                     .traffic_class = received.traffic_class,
                     .hop_limit = received.hop_limit,
                     .flow_label = received.flow_label};
  packet.transport = kName;
  packet.direction = capture::Direction::kInbound;
  packet.qp = name_in(data).dest_qpn;
  if (load_icrc(data + length - kIcrcBytes) == 0) packet.flags = capture::frame_flag::kWithoutCrc;
  const base::Piece part{const_cast<std::byte*>(data), length};
  capture::record(packet, &part, 1);
}

}  // namespace nupa::roce
