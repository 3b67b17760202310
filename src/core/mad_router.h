// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "core/seam/mad_carrier.h"

namespace nupa::core {

/// Several transports that carry management datagrams, as one. A datagram goes by the transport that has its interface;
/// the way to a host is that of the first transport which leads there.
class MadRouter final : public MadCarrier {
 public:
  /// `carriers`: in order of preference, at least one; they outlive the router.
  explicit MadRouter(std::vector<MadCarrier*> carriers) : carriers_(std::move(carriers)) {}

  Result<void> listen(MadHandler handler) override;
  void unlisten() override;
  bool send(const MadDatagram& datagram) override;
  HostWay way_to_host(const DeviceEntry& device, uint32_t gid_index, const Gid& address) const override;
  bool leads_to(const Gid& address) const override;
  bool receives_for_host() const override;
  Result<std::unique_ptr<MadSocket>> open_host_socket() override;
  bool probes() const override;
  Result<std::unique_ptr<MadSocket>> open_probe_socket() override;

 private:
  MadCarrier& by_interface(uint32_t interface) const;

  const std::vector<MadCarrier*> carriers_;
};

}  // namespace nupa::core
