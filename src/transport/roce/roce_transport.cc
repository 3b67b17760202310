// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/roce_transport.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/gid.h"
#include "base/gid_text.h"
#include "base/log.h"
#include "base/settings.h"
#include "net/route.h"

namespace nupa::roce {

namespace {

/// Send and receive buffer that is requested from the kernel, bytes.
constexpr uint32_t kSocketBytes = 4 << 20;

static_assert(base::find_setting("NUPA_ROCE_SOURCE_PORTS")->most == kMaxPaths);

/// NUPA_CONGESTION, NUPA_ROCE_SOURCE_PORTS, NUPA_ROCE_ICRC, NUPA_ROCE_PEERS.
Result<WireSettings> settings_from_environment() {
  WireSettings settings;
  const auto congestion = base::word_setting("NUPA_CONGESTION");
  if (!congestion) return tl::unexpected(congestion.error());
  settings.congestion = base::choice_of(*base::find_setting("NUPA_CONGESTION"), *congestion);
  const auto ports = base::number_setting("NUPA_ROCE_SOURCE_PORTS");
  if (!ports) return tl::unexpected(ports.error());
  settings.source_ports = static_cast<uint32_t>(*ports);
  const auto icrc = base::boolean_setting("NUPA_ROCE_ICRC");
  if (!icrc) return tl::unexpected(icrc.error());
  settings.unchecked = !*icrc;
  const auto peers = base::word_setting("NUPA_ROCE_PEERS");
  if (!peers) return tl::unexpected(peers.error());
  settings.standard = *peers == 1;
  return settings;
}

}  // namespace

Result<std::unique_ptr<core::Transport>> RoceTransport::create() {
  const auto settings = settings_from_environment();
  if (!settings) return tl::unexpected(settings.error());
  return std::make_unique<RoceTransport>(*settings);
}

// A slot of this process needs its UDP port, which another user's process may have.
core::Transport::Slot RoceTransport::reserve(uint32_t slot) {
  socket_.reset();
  // Standard peers use one port only.
  if (settings_.standard && Port::port_of_slot(slot) != kUdpPort) return Slot::kTaken;
  auto opened = net::UdpSocket::open(Port::port_of_slot(slot), kSocketBytes);
  if (!opened) return opened.error().code() == EADDRINUSE ? Slot::kTaken : Slot::kUnable;
  socket_.emplace(std::move(*opened));
  return Slot::kFine;
}

Result<bool> RoceTransport::reserve_further(uint32_t slot) {
  if (std::exchange(holds_unused_socket_, false)) port_->drop_last_socket();
  // Standard peers send to one port, for all queue pair numbers.
  if (settings_.standard) return true;
  const uint16_t udp_port = Port::port_of_slot(slot);
  auto opened = net::UdpSocket::open(udp_port, kSocketBytes);
  if (!opened && opened.error().code() == EADDRINUSE) return false;
  const auto added = opened ? port_->add_socket(std::move(*opened)) : tl::unexpected(opened.error());
  if (!added)
    return fail(added.error().code(), "cannot use UDP port ", udp_port, ": ", std::strerror(added.error().code()));
  holds_unused_socket_ = true;
  return true;
}

Result<void> RoceTransport::explain_no_slot() const {
  if (settings_.standard) return fail(EADDRINUSE, "UDP port 4791 is in use, and NUPA_ROCE_PEERS=standard needs it");
  return {};
}

Result<void> RoceTransport::open(core::ProcessContext& process) {
  process_ = &process;
  // Another transport covers this host: members of groups on it must get each datagram once.
  if (process.host_is_covered(*this)) socket_->set_group_loop(false);
  auto port = Port::open(std::move(*socket_), settings_.source_ports);
  socket_.reset();
  if (!port) return tl::unexpected(port.error());
  port_ = std::move(*port);
  port_->set_presence([&process](uint32_t number) { return process.has_queue_pair(number); });
  return {};
}

Result<std::unique_ptr<core::Endpoint>> RoceTransport::connect(const core::DeviceEntry& device,
                                                               core::QpContext& context, const QpAttr& attr,
                                                               bool may_lower_mtu) {
  const AddressVector& vector = attr.av;
  const size_t index = vector.is_global ? vector.sgid_index : std::min<size_t>(1, device.gids.size() - 1);
  if (index >= device.gids.size())
    return fail(EHOSTUNREACH, "device ", device.index, ": source GID ", index, " is empty");
  const GidEntry& source = device.gids[index];
  const Gid peer = vector.is_global ? vector.dgid : source.gid;
  if (base::is_ipv4(peer) != base::is_ipv4(source.gid))
    return fail(EHOSTUNREACH, "source ", base::gid_text(source.gid), " and destination ", base::gid_text(peer),
                " have different address families");
  LocalEnd end{&context, rails_from(device, source, peer), 0, false};
  const auto way = mtu_of_way(peer, end.rails[0].interface_index);
  if (!way) return tl::unexpected(way.error());
  QpAttr fitting = attr;
  if (*way != 0 && attr.path_mtu > mtu_within(*way)) {
    // If another transport determines the port's MTU, the peer lowers the path MTU as well.
    if (!may_lower_mtu)
      return fail(EINVAL, "the path MTU is larger than the MTU of the route to ", base::gid_text(peer));
    fitting.path_mtu = mtu_within(*way);
  }
  if (auto started = start_for_queue_pairs(); !started) return tl::unexpected(started.error());
  return std::make_unique<ConnectedEndpoint>(*port_, end, fitting, peer, settings_);
}

Sources RoceTransport::sources_of(const core::DeviceEntry& device) const {
  if (device.interfaces.empty()) return {device.gids, false, {}};
  return {device.gids, true, process_->host_addresses()};
}

uint32_t RoceTransport::exit_of(const core::DeviceEntry& device, const GidEntry& source, const Gid& peer) const {
  return base::is_link_local(peer) ? source.interface_index : sources_of(device).exit_of(source, peer);
}

std::vector<Rail> RoceTransport::rails_from(const core::DeviceEntry& device, const GidEntry& source,
                                            const Gid& peer) const {
  const Sources sources = sources_of(device);
  std::vector<Rail> rails;
  const auto add = [&](const Gid& address, uint32_t exit) {
    const auto socket = static_cast<uint32_t>(rails.size() % port_->sockets().size());
    rails.push_back({address, exit, port_->sockets()[socket].port(), socket});
  };
  add(source.gid, exit_of(device, source, peer));
  std::vector<uint32_t> interfaces{source.interface_index};
  for (const GidEntry& entry : device.gids) {
    const bool used = std::find(interfaces.begin(), interfaces.end(), entry.interface_index) != interfaces.end();
    if (device.interfaces.size() < 2 || used || rails.size() == kMaxPaths || base::is_link_local(entry.gid) ||
        base::is_ipv4(entry.gid) != base::is_ipv4(source.gid))
      continue;
    add(entry.gid, sources.exit_of(entry, peer));
    interfaces.push_back(entry.interface_index);
  }
  for (size_t i = 0; rails.size() < port_->sockets().size(); ++i) add(rails[i].address, rails[i].interface_index);
  return rails;
}

Result<std::unique_ptr<core::DatagramSender>> RoceTransport::datagrams(const core::DeviceEntry& device,
                                                                       core::QpContext& context, host::DueEvent&) {
  const auto mtu = mtu_of_port(device);
  if (!mtu) return tl::unexpected(mtu.error());
  if (auto started = start_for_queue_pairs(); !started) return tl::unexpected(started.error());
  const bool only_other_hosts = process_->host_is_covered(*this);
  const LocalEnd end{&context, {}, bytes_of(mtu_within(*mtu)), only_other_hosts};
  return std::make_unique<DatagramEndpoint>(*port_, end, sources_of(device), settings_);
}

int RoceTransport::join(const core::DeviceEntry& device, uint32_t qp_num, const Gid& group) {
  return port_->attach(qp_num, group, device.index, device.gids);
}

void RoceTransport::leave(uint32_t qp_num, const Gid& group) { port_->detach(qp_num, group); }

Result<uint32_t> RoceTransport::mtu_of_port(const core::DeviceEntry& device) const {
  return mtus_of_ports_.get(device.index, [&] { return net::interface_mtu(device.gids); });
}

Result<uint32_t> RoceTransport::mtu_of_way(const Gid& host, uint32_t scope) const {
  return mtus_of_ways_.get({host, scope}, [&] { return net::route_mtu({host, kUdpPort, scope}); });
}

Result<Mtu> RoceTransport::mtu(const core::DeviceEntry& device) const {
  const auto bytes = mtu_of_port(device);
  if (!bytes) return tl::unexpected(bytes.error());
  return mtu_within(*bytes);
}

Result<std::optional<Mtu>> RoceTransport::mtu_to(const Gid& host, uint32_t scope) const {
  const auto bytes = mtu_of_way(host, scope);
  if (!bytes) return tl::unexpected(bytes.error());
  if (*bytes == 0) return std::nullopt;
  return mtu_within(*bytes);
}

Result<void> RoceTransport::listen(core::MadHandler handler) {
  if (settings_.standard)
    port_->set_management([handler = std::move(handler)](const MadDatagram& datagram) {
      MadDatagram standard = datagram;
      standard.of_nupa = false;
      standard.remote.port = kUdpPort;
      handler(standard);
    });
  else
    port_->set_management(std::move(handler));
  // The serving thread does not touch the program's memory for management.
  std::lock_guard lock(start_mutex_);
  auto started = port_->start();
  if (started && !serves_queue_pairs_) process_->count_thread(false);
  return started;
}

core::HostWay RoceTransport::way_to_host(const core::DeviceEntry& device, uint32_t gid_index,
                                         const Gid& address) const {
  if (gid_index >= device.gids.size()) return {kUdpPort, 0};
  return {kUdpPort, exit_of(device, device.gids[gid_index], address)};
}

Result<std::unique_ptr<core::MadSocket>> RoceTransport::open_host_socket() {
  auto socket = ManagementSocket::open(kUdpPort);
  if (!socket) return tl::unexpected(socket.error());
  NUPA_INFO("using UDP port %u for communication management", kUdpPort);
  return std::make_unique<ManagementSocket>(std::move(*socket));
}

Result<std::unique_ptr<core::MadSocket>> RoceTransport::open_probe_socket() {
  auto socket = ManagementSocket::open(0);
  if (!socket) return tl::unexpected(socket.error());
  return std::make_unique<ManagementSocket>(std::move(*socket));
}

Result<void> RoceTransport::start_for_queue_pairs() {
  std::lock_guard lock(start_mutex_);
  serves_queue_pairs_ = true;
  process_->count_thread(true);
  return port_->start();
}

}  // namespace nupa::roce
