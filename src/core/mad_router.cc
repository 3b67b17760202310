// SPDX-License-Identifier: Apache-2.0
#include "core/mad_router.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "progress/receive_right.h"

namespace nupa::core {
namespace {

/// The sockets of several transports, as one.
class RoutedSocket final : public MadSocket {
 public:
  struct Part {
    const MadCarrier* carrier;
    std::unique_ptr<MadSocket> socket;
  };

  Result<void> open() { return set_.open(); }
  Result<void> add(const MadCarrier& carrier, std::unique_ptr<MadSocket> socket) {
    if (auto added = set_.add(socket->fd()); !added) return added;
    parts_.push_back({&carrier, std::move(socket)});
    return {};
  }

  int fd() const override { return set_.packets_fd(); }
  void receive(const MadHandler& handler) override {
    for (const Part& part : parts_) part.socket->receive(handler);
  }
  void send(const MadDatagram& datagram) override {
    for (const Part& part : parts_)
      if (part.carrier->has_interface(datagram.interface)) return part.socket->send(datagram);
  }
  std::optional<MadPeer> next_refusal() override {
    for (const Part& part : parts_)
      if (auto refusal = part.socket->next_refusal()) return refusal;
    return std::nullopt;
  }

 private:
  std::vector<Part> parts_;
  progress::ReceiveRight set_;
};

}  // namespace

Result<void> MadRouter::listen(MadHandler handler) {
  for (size_t i = 0; i < carriers_.size(); ++i)
    if (auto listened = carriers_[i]->listen(handler); !listened) {
      while (i-- > 0) carriers_[i]->unlisten();
      return listened;
    }
  return {};
}

void MadRouter::unlisten() {
  for (MadCarrier* const carrier : carriers_) carrier->unlisten();
}

MadCarrier& MadRouter::by_interface(uint32_t interface) const {
  const auto has = [interface](const MadCarrier* carrier) { return carrier->has_interface(interface); };
  const auto found = std::find_if(carriers_.begin(), carriers_.end(), has);
  return **(found == carriers_.end() ? carriers_.end() - 1 : found);
}

bool MadRouter::send(const MadDatagram& datagram) { return by_interface(datagram.interface).send(datagram); }

HostWay MadRouter::way_to_host(const DeviceEntry& device, uint32_t gid_index, const Gid& address) const {
  const auto leads = [&](const MadCarrier* carrier) { return carrier->leads_to(address); };
  const auto found = std::find_if(carriers_.begin(), carriers_.end(), leads);
  return (*(found == carriers_.end() ? carriers_.end() - 1 : found))->way_to_host(device, gid_index, address);
}

bool MadRouter::leads_to(const Gid& address) const {
  return std::any_of(carriers_.begin(), carriers_.end(),
                     [&](const auto* carrier) { return carrier->leads_to(address); });
}

bool MadRouter::receives_for_host() const {
  return std::all_of(carriers_.begin(), carriers_.end(),
                     [](const auto* carrier) { return carrier->receives_for_host(); });
}

Result<std::unique_ptr<MadSocket>> MadRouter::open_host_socket() {
  for (MadCarrier* const carrier : carriers_)
    if (!carrier->receives_for_host()) return carrier->open_host_socket();
  return fail(EADDRINUSE, "this process receives the datagrams of the host");
}

bool MadRouter::probes() const {
  return std::any_of(carriers_.begin(), carriers_.end(), [](const auto* carrier) { return carrier->probes(); });
}

Result<std::unique_ptr<MadSocket>> MadRouter::open_probe_socket() {
  auto routed = std::make_unique<RoutedSocket>();
  if (auto opened = routed->open(); !opened) return tl::unexpected(opened.error());
  for (MadCarrier* const carrier : carriers_) {
    if (!carrier->probes()) continue;
    auto socket = carrier->open_probe_socket();
    if (!socket) return socket;
    if (auto added = routed->add(*carrier, std::move(*socket)); !added) return tl::unexpected(added.error());
  }
  return routed;
}

}  // namespace nupa::core
