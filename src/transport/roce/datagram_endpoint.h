// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <optional>
#include <vector>

#include "core/seam/group_address.h"
#include "transport/roce/endpoint.h"

namespace nupa::roce {

/// The addresses of a device's port.
struct Sources {
  std::vector<GidEntry> gids;  ///< by GID index
  bool pinned = false;         ///< packets leave by the interface of their source, except those to this host
  std::vector<Gid> host;       ///< the host's addresses, if `pinned`

  /// Returns the interface that packets from `source` to `address` have to leave by; 0: the system chooses it.
  uint32_t exit_of(const GidEntry& source, const Gid& address) const {
    return pinned && std::find(host.begin(), host.end(), address) == host.end() ? source.interface_index : 0;
  }
  /// True if packets to `address` are for this port.
  bool takes(const Gid& address) const { return !pinned || core::names_group(address) || has(address); }
  bool has(const Gid& address) const {
    return std::any_of(gids.begin(), gids.end(), [&](const GidEntry& entry) { return entry.gid == address; });
  }
};

/// The endpoint of a UD queue pair (IBTA 9.8.3): each request has its own destination, and completes when its packet
/// has left.
class DatagramEndpoint final : public core::DatagramSender, public EndpointReceiver {
 public:
  DatagramEndpoint(Port& port, const LocalEnd& end, Sources sources, const WireSettings& settings)
      : EndpointReceiver(port, end), sources_(std::move(sources)), settings_(settings) {
    port.report_more();
    port.add(*this);
  }

  Reach leads_to(const AddressVector&, uint32_t) override { return Reach::kYes; }
  std::optional<WcStatus> send(const core::Request& request) override;
  void withdraw() override { port_.remove(*this); }

  void deliver(Packet& packet, const net::UdpSocket::Received& from, int64_t now) override;
  void transmit(int64_t, TransmitBatch&, bool) override {}
  bool owes_answers() const override { return false; }
  void on_timer(int64_t) override {}
  void take_turn(FlowWindow&, int64_t, TransmitBatch&) override {}
  void leave_wait_queues() override {}
  Peer* peer() override { return nullptr; }

 private:
  /// True for a datagram to a group that this queue pair has sent itself. On one host no other queue pair has its
  /// number.
  bool is_own(const Packet& packet, const net::UdpSocket::Received& from) const {
    return packet.source_qpn == context_.number() && core::names_group(from.to) && sources_.has(from.from.address);
  }

  const Sources sources_;
  const WireSettings settings_;
  uint32_t psn_ = 0;
};

}  // namespace nupa::roce
