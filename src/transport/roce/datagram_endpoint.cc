// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/datagram_endpoint.h"

#include <netinet/in.h>

#include "base/gid.h"
#include "core/seam/grh.h"
#include "core/seam/whole_message.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kMaxFragments = 64;

/// True if the address is in 127.0.0.0/8.
bool is_loopback(const Gid& gid) { return base::is_ipv4(gid) && gid.raw[12] == IN_LOOPBACKNET; }

}  // namespace

std::optional<WcStatus> DatagramEndpoint::send(const core::Request& request) {
  const SendWr& wr = request.wr;
  const AddressVector& vector = *request.vector;
  if (request.length > end_.max_datagram) return WcStatus::kLocLenErr;
  const std::vector<GidEntry>& gids = sources_.gids;
  const GidEntry& source = gids[vector.sgid_index < gids.size() ? vector.sgid_index : 0];
  Destination destination;
  destination.place = wr.remote_qpn;
  destination.qp = context_.number();
  destination.to.address = vector.dgid;
  if (!vector.is_global) destination.to.address = source.gid;  // a local address handle is for this host
  destination.to.scope = source.interface_index;
  const uint32_t slot = shm::slot_of(wr.remote_qpn);
  const bool named = !settings_.standard && slot >= shm::kMinSlot && slot <= shm::kMaxSlot;
  const bool group = vector.is_global && core::names_group(vector.dgid);
  // Packets to a group that leave by the loopback interface reach this host only.
  if (group && end_.only_other_hosts && is_loopback(source.gid)) return WcStatus::kSuccess;
  destination.to.port = named && !group ? Port::port_of_slot(slot) : kUdpPort;
  // A group is reached by the interface of the source address.
  destination.from_interface = group ? source.interface_index : sources_.exit_of(source, destination.to.address);
  destination.from = source.gid;
  // IBTA 9.8.3: the address handle gives the fields of the header.
  destination.fields = {vector.traffic_class, vector.hop_limit, vector.flow_label};
  Packet packet;
  const bool imm = wr.opcode == Opcode::kSendWithImm;
  packet.opcode = opcode_of(Service::kUd, imm ? Operation::kSendOnlyImm : Operation::kSendOnly);
  packet.mark = settings_.standard ? 0 : kNupaMark;
  packet.solicited = (wr.flags & send_flag::kSolicited) != 0;
  packet.dest_qpn = group ? core::kGroupQpn : wr.remote_qpn;
  packet.psn = psn_;
  packet.imm = wr.imm_or_rkey;
  packet.qkey = core::qkey_of(wr, context_);
  packet.source_qpn = context_.number();
  packet.payload_length = static_cast<uint32_t>(request.length);
  Fragment fragments[kMaxFragments];
  for (uint32_t i = 0; i < request.piece_count; ++i)
    fragments[i] = {request.pieces[i].data, static_cast<uint32_t>(request.pieces[i].length)};
  TransmitBatch* batch = port_.batch();
  if (batch == nullptr) return WcStatus::kLocQpOpErr;
  batch->aim(&destination, &counts());
  const Sent sent = batch->send(0, packet, fragments, request.piece_count);
  batch->flush();
  if (sent == Sent::kNotNow) [[unlikely]]
    return std::nullopt;
  psn_ = (psn_ + 1) & kPsnMask;
  if (group && sent == Sent::kYes) counts().add_alone(shm::PortCount::kMulticastXmit, 1);
  return sent == Sent::kUnreadable ? WcStatus::kLocProtErr : WcStatus::kSuccess;
}

void DatagramEndpoint::deliver(Packet& packet, const net::UdpSocket::Received& from, int64_t) {
  if (!receives() || !sources_.takes(from.to) || service_of(packet.opcode) != Service::kUd ||
      (packet.pkey | kMembership) != uint16_t{0xffff} || packet.qkey != context_.qkey()) {
    count_unexpected();
    return;
  }
  if (!context_.hears_itself() && is_own(packet, from)) return;
  counts().received_packet(packet.payload_length);
  if (core::names_group(from.to)) counts().add_alone(shm::PortCount::kMulticastRcv, 1);
  AddressVector vector;
  vector.traffic_class = from.traffic_class;
  vector.hop_limit = from.hop_limit;
  vector.flow_label = from.flow_label;
  core::RouteHeader header = core::make_route_header(vector, from.from.address, from.to, packet.payload_length);
  Inbound inbound;
  inbound.src_qp = packet.source_qpn;
  inbound.solicited = packet.solicited;
  inbound.wc_flags = wc_flag::kGrh;
  if (operation_of(packet.opcode) == Operation::kSendOnlyImm) {
    inbound.wc_flags |= wc_flag::kWithImm;
    inbound.imm_data = packet.imm;
  }
  // A datagram without a receive, or that does not fit it, is dropped silently (IBTA 9.8.3.2.2).
  const core::Piece pieces[] = {{header.data(), header.size()},
                                {const_cast<std::byte*>(packet.payload), packet.payload_length}};
  const core::SendPart whole = core::whole_datagram(pieces, 2, packet.payload_length + core::kGrhBytes);
  core::ContextTarget target(context_);
  core::Responder<core::ContextTarget>::Message message;
  core::Responder<core::ContextTarget>(target, false).send(whole, &inbound, &message);
}

}  // namespace nupa::roce
