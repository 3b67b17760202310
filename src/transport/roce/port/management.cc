// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/management.h"

#include <algorithm>
#include <cstring>

#include "capture/tap.h"
#include "transport/roce/port/captured.h"
#include "transport/roce/port/transmit_batch.h"
#include "transport/roce/wire/icrc.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kSocketBytes = 256 << 10;

}  // namespace

bool read_management(const Packet& packet, const net::UdpSocket::Received& received, MadDatagram* datagram) {
  if (packet.opcode != opcode_of(Service::kUd, Operation::kSendOnly) || packet.dest_qpn != kManagementQpn ||
      packet.source_qpn != kManagementQpn || packet.qkey != kManagementQkey ||
      (packet.pkey | kMembership) != uint16_t{0xffff} || packet.payload_length != MadDatagram::kBytes)
    return false;
  std::memcpy(datagram->bytes.data(), packet.payload, MadDatagram::kBytes);
  datagram->local = received.to;
  datagram->of_nupa = packet.mark == kNupaMark;
  datagram->remote = {received.from.address, datagram->of_nupa ? received.from.port : kUdpPort};
  datagram->interface = received.from.scope;
  datagram->from_port = received.from.port;
  return true;
}

void send_management(TransmitBatch& batch, const MadDatagram& datagram, bool marked) {
  Destination destination;
  destination.to = {datagram.remote.address, datagram.remote.port, datagram.interface};
  destination.from = datagram.local;
  destination.from_interface = datagram.interface;
  destination.qp = kManagementQpn;
  Packet packet;
  packet.opcode = opcode_of(Service::kUd, Operation::kSendOnly);
  packet.mark = marked ? kNupaMark : 0;
  packet.dest_qpn = kManagementQpn;
  packet.source_qpn = kManagementQpn;
  packet.qkey = kManagementQkey;
  packet.payload_length = MadDatagram::kBytes;
  const Fragment payload{datagram.bytes.data(), MadDatagram::kBytes};
  batch.aim(&destination);
  batch.send(0, packet, &payload, 1);
  batch.flush();
}

ManagementSocket::ManagementSocket(net::UdpSocket socket, bool marked)
    : marked_(marked),
      socket_(std::make_unique<std::vector<net::UdpSocket>>()),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(net::UdpSocket::kMaxReceive)) {
  socket.report_refusals();
  parent_only_ = std::make_unique<progress::ParentOnly>(socket.fd());
  socket_->push_back(std::move(socket));
}

ManagementSocket::ManagementSocket(ManagementSocket&&) noexcept = default;
ManagementSocket::~ManagementSocket() = default;

Result<ManagementSocket> ManagementSocket::open(uint16_t port, bool marked) {
  auto socket = net::UdpSocket::open(port, kSocketBytes);
  if (!socket) return tl::unexpected(socket.error());
  return ManagementSocket(std::move(*socket), marked);
}

int ManagementSocket::fd() const { return socket_->front().fd(); }

std::optional<core::MadPeer> ManagementSocket::next_refusal() {
  net::UdpSocket::Refusal refusal;
  if (!socket_->front().next_refusal(&refusal)) return std::nullopt;
  return core::MadPeer{refusal.to.address, refusal.to.port};
}

void ManagementSocket::send(const MadDatagram& datagram) {
  if (batch_ == nullptr) batch_ = std::make_unique<TransmitBatch>(*socket_, false);
  send_management(*batch_, datagram, marked_);
}

void ManagementSocket::receive(const MadHandler& handler) {
  const net::UdpSocket& socket = socket_->front();
  net::UdpSocket::Received received;
  while (socket.receive(buffer_.get(), net::UdpSocket::kMaxReceive, &received)) {
    uint32_t position = 0;
    for (uint32_t at = 0; at < received.length; at += received.segment, ++position) {
      const std::byte* data = buffer_.get() + at;
      const uint32_t length = std::min(received.segment, received.length - at);
      const Route route{received.from.address, received.to, received.from.port, socket.port()};
      Packet packet;
      MadDatagram datagram;
      if (capture::is_on()) [[unlikely]]
        record_received(received, socket.port(), data, length);
      if (length >= kShortestPacket && length <= kMaxPacketBytes &&
          icrc_holds(route, data, length, kAnyIdentification, static_cast<uint16_t>(position)) &&
          decode(data, length, &packet) && read_management(packet, received, &datagram))
        handler(datagram);
    }
  }
}

}  // namespace nupa::roce
