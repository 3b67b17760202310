#include "transport/roce/management.h"

#include <algorithm>
#include <cstring>

#include "transport/roce/burst.h"
#include "transport/roce/icrc.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kSocketBytes = 256 << 10;

}  // namespace

bool read_management(const Packet& packet, const io::UdpSocket::Received& received, ManagementDatagram* datagram) {
  if (packet.opcode != opcode_of(Service::kUd, Operation::kSendOnly) || packet.dest_qpn != kManagementQpn ||
      packet.source_qpn != kManagementQpn || packet.qkey != kManagementQkey ||
      (packet.pkey | kMembership) != uint16_t{0xffff} || packet.payload_length != kManagementBytes)
    return false;
  std::memcpy(datagram->bytes.data(), packet.payload, kManagementBytes);
  datagram->local = received.to;
  datagram->remote = received.from;
  datagram->of_nupa = packet.mark == kNupaMark;
  return true;
}

void send_management(Burst& burst, const ManagementDatagram& datagram) {
  Destination destination;
  destination.to = datagram.remote;
  destination.from = datagram.local;
  destination.from_interface = datagram.remote.scope;
  Packet packet;
  packet.opcode = opcode_of(Service::kUd, Operation::kSendOnly);
  packet.mark = datagram.of_nupa ? kNupaMark : 0;
  packet.dest_qpn = kManagementQpn;
  packet.source_qpn = kManagementQpn;
  packet.qkey = kManagementQkey;
  packet.payload_length = kManagementBytes;
  const Fragment payload{datagram.bytes.data(), kManagementBytes};
  burst.aim(&destination);
  burst.send(0, packet, &payload, 1);
  burst.flush();
}

ManagementSocket::ManagementSocket(io::UdpSocket socket)
    : socket_(std::make_unique<std::vector<io::UdpSocket>>()),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(io::UdpSocket::kMaxReceive)) {
  socket.tell_refusals();
  parent_only_ = std::make_unique<base::ParentOnly>(socket.fd());
  socket_->push_back(std::move(socket));
}

ManagementSocket::ManagementSocket(ManagementSocket&&) noexcept = default;
ManagementSocket::~ManagementSocket() = default;

Result<ManagementSocket> ManagementSocket::open(uint16_t port) {
  auto socket = io::UdpSocket::open(port, kSocketBytes);
  if (!socket) return tl::unexpected(socket.error());
  return ManagementSocket(std::move(*socket));
}

int ManagementSocket::fd() const { return socket_->front().fd(); }

bool ManagementSocket::next_refusal(io::UdpAddress* where) const { return socket_->front().next_refusal(where); }

void ManagementSocket::send(const ManagementDatagram& datagram) {
  if (burst_ == nullptr) burst_ = std::make_unique<Burst>(*socket_, false);
  send_management(*burst_, datagram);
}

void ManagementSocket::receive(const ManagementHandler& handler) {
  const io::UdpSocket& socket = socket_->front();
  io::UdpSocket::Received received;
  while (socket.receive(buffer_.get(), io::UdpSocket::kMaxReceive, &received)) {
    uint32_t position = 0;
    for (uint32_t at = 0; at < received.length; at += received.segment, ++position) {
      const std::byte* data = buffer_.get() + at;
      const uint32_t length = std::min(received.segment, received.length - at);
      const Route route{received.from.address, received.to, received.from.port, socket.port()};
      Packet packet;
      ManagementDatagram datagram;
      if (length >= kShortestPacket && length <= kMaxPacketBytes &&
          icrc_holds(route, data, length, kAnyIdentification, static_cast<uint16_t>(position)) &&
          decode(data, length, &packet) && read_management(packet, received, &datagram))
        handler(datagram);
    }
  }
}

}  // namespace nupa::roce
