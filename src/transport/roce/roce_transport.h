// SPDX-License-Identifier: Apache-2.0
#pragma once
/// RoCEv2 over UDP (IBTA annex A17): packets between any two hosts that have IP addresses.

#include <mutex>
#include <optional>

#include "base/recent.h"
#include "core/seam/transport.h"
#include "transport/roce/datagram_endpoint.h"

namespace nupa::roce {

class RoceTransport final : public core::Transport, public core::MadCarrier {
 public:
  /// Reads NUPA_CONGESTION, NUPA_ROCE_SOURCE_PORTS, NUPA_ROCE_ICRC, NUPA_ROCE_PEERS. EINVAL (logged): one of them is
  /// wrong.
  static Result<std::unique_ptr<core::Transport>> create();
  explicit RoceTransport(const WireSettings& settings) : settings_(settings) {}

  std::string_view name() const override { return kTransportName; }
  Slot reserve(uint32_t slot) override;
  Result<bool> reserve_further(uint32_t slot) override;
  void extend(uint32_t) override { holds_unused_socket_ = false; }
  Result<void> explain_no_slot() const override;
  Result<void> open(core::ProcessContext& process) override;
  bool reaches(const AddressVector&, uint32_t) override { return true; }
  Result<std::unique_ptr<core::Endpoint>> connect(const core::DeviceEntry& device, core::QpContext& context,
                                                  const QpAttr& attr, bool may_lower_mtu) override;
  Result<std::unique_ptr<core::DatagramSender>> datagrams(const core::DeviceEntry& device, core::QpContext& context,
                                                          host::DueEvent& due) override;
  int join(const core::DeviceEntry& device, uint32_t qp_num, const Gid& group) override;
  void leave(uint32_t qp_num, const Gid& group) override;
  Result<Mtu> mtu(const core::DeviceEntry& device) const override;
  Result<std::optional<Mtu>> mtu_to(const Gid& host, uint32_t scope) const override;
  bool records_packets() const override { return true; }
  progress::Poller* poller() override { return port_ == nullptr ? nullptr : &port_->poller(); }
  core::MadCarrier* mads() override { return this; }

  Result<void> listen(core::MadHandler handler) override;
  void unlisten() override { port_->set_management(nullptr); }
  bool send(const core::MadDatagram& datagram) override {
    return port_->send_management(datagram, !settings_.standard);
  }
  core::HostWay way_to_host(const core::DeviceEntry& device, uint32_t gid_index, const Gid& address) const override;
  bool receives_for_host() const override { return port_->socket().port() == kUdpPort; }
  Result<std::unique_ptr<core::MadSocket>> open_host_socket() override;
  // Only NUPA processes understand probes.
  bool probes() const override { return !settings_.standard; }
  Result<std::unique_ptr<core::MadSocket>> open_probe_socket() override;

 private:
  /// Returns bytes.
  Result<uint32_t> mtu_of_port(const core::DeviceEntry& device) const;
  /// Returns bytes; 0: the kernel has no route.
  Result<uint32_t> mtu_of_way(const Gid& host, uint32_t scope) const;
  /// Returns the interface that packets from `source` to `peer` leave by.
  uint32_t exit_of(const core::DeviceEntry& device, const GidEntry& source, const Gid& peer) const;
  /// Starts the serving thread, which may then write to the program's memory.
  Result<void> start_for_queue_pairs();
  Sources sources_of(const core::DeviceEntry& device) const;
  /// The rails of a connection from `source`: that one, other interfaces' addresses of its family, further source
  /// ports.
  std::vector<Rail> rails_from(const core::DeviceEntry& device, const GidEntry& source, const Gid& peer) const;

  const WireSettings settings_;
  core::ProcessContext* process_ = nullptr;
  std::optional<net::UdpSocket> socket_;  ///< socket of the slot, until the port takes it
  std::unique_ptr<Port> port_;
  bool holds_unused_socket_ = false;  ///< of a further slot that was reserved and not obtained
  struct Way {
    Gid host;
    uint32_t scope = 0;
    bool operator==(const Way&) const = default;
  };
  mutable base::Recent<uint32_t, uint32_t> mtus_of_ports_;  ///< by device index
  mutable base::Recent<Way, uint32_t> mtus_of_ways_;
  std::mutex start_mutex_;
  bool serves_queue_pairs_ = false;
};

}  // namespace nupa::roce
