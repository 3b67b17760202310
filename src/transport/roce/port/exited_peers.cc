// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/exited_peers.h"

#include <arpa/inet.h>

#include <optional>

#include "transport/roce/port/management.h"

namespace nupa::roce {
namespace {

/// Reports of closed ports that are handled at once.
constexpr uint32_t kRefusalsAtOnce = 32;
/// The least time between two reports of a missing queue pair: hosts limit their reports of closed ports in the same
/// way.
constexpr int64_t kAbsencePauseNs = 1'000'000;

}  // namespace

void ExitedPeers::take_refusals(Hold& hold, const std::vector<net::UdpSocket>& sockets, PeerSockets& peer_sockets) {
  net::UdpSocket::Refusal refusal;
  // Anybody may send these reports: those that are not read now wait for the next time.
  uint32_t looks = kRefusalsAtOnce;
  for (const net::UdpSocket& socket : sockets)
    for (; looks > 0 && socket.next_refusal(&refusal); --looks) refused(hold, refusal);
  for (; looks > 0 && peer_sockets.next_refusal(&refusal); --looks) refused(hold, refusal);
}

template <class Visit>
void ExitedPeers::each_to(Hold& hold, const net::UdpAddress& to, Visit&& visit) {
  queue_pairs_.each([&](QpReceiver& queue_pair) {
    if (!queue_pair.may_lead_to(to) || !hold.take(queue_pair)) return true;
    const bool goes_on = visit(queue_pair);
    hold.release();
    return goes_on;
  });
}

void ExitedPeers::refused(Hold& hold, const net::UdpSocket::Refusal& refusal) {
  // A host that quotes only the minimum (RFC 792) does not show the queue pair.
  std::optional<PacketName> packet;
  if (refusal.quoted_length >= kBthBytes) packet = name_in(refusal.quoted.data());
  bool known = false;
  each_to(hold, refusal.to, [&](const QpReceiver& queue_pair) {
    known = queue_pair.is_under_way(refusal.to, packet);
    return !known;
  });
  if (!known) return;
  // A host sends few reports: one about a packet of one queue pair holds for all queue pairs to that process.
  each_to(hold, refusal.to, [&](QpReceiver& queue_pair) {
    queue_pair.doubt_peer(refusal.to);
    return true;
  });
}

void ExitedPeers::absence_came(Hold& hold, const Packet& packet, const net::UdpSocket::Received& received) {
  if (packet.mark != kNupaMark) return;
  const PacketName name{ntohl(packet.imm), packet.psn};
  each_to(hold, received.from, [&](QpReceiver& queue_pair) {
    const bool is_meant = queue_pair.is_under_way(received.from, name);
    if (is_meant) queue_pair.doubt_peer(received.from);
    return !is_meant;
  });
}

void ExitedPeers::notify(const Packet& asked, const net::UdpSocket::Received& received, TransmitBatch& batch,
                         int64_t now) {
  const Service service = service_of(asked.opcode);
  const bool wants_answer = (service == Service::kRc || service == Service::kXrc) && !is_for_requester(asked.opcode);
  // A standard peer would not understand the report. A peer that is not connected yet will be.
  if (asked.mark != kNupaMark || !wants_answer || has_queue_pair_(asked.dest_qpn)) return;
  next_absence_ns_ = now + kAbsencePauseNs;
  Destination destination;
  destination.to = received.from;
  destination.from = received.to;
  destination.from_interface = received.from.scope;
  destination.qp = kManagementQpn;
  Packet packet;
  packet.opcode = kAbsence;
  packet.mark = kNupaMark;
  packet.dest_qpn = kManagementQpn;
  packet.psn = asked.psn;
  packet.imm = htonl(asked.dest_qpn);
  batch.aim(&destination);
  batch.send(0, packet, nullptr, 0);
  batch.flush();
}

}  // namespace nupa::roce
