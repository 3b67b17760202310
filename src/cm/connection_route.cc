// SPDX-License-Identifier: Apache-2.0
/// Finds the device and the local address of a connection.
#include <algorithm>
#include <cerrno>

#include "base/gid.h"
#include "base/gid_text.h"
#include "cm/connections.h"
#include "core/device_attr.h"
#include "core/seam/group_address.h"
#include "net/find_route.h"

namespace nupa::cm {
namespace {

bool is_loopback(const Gid& gid) {
  constexpr uint8_t kLoopbackNet = 127;
  static constexpr Gid kIpv6Loopback{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  return base::is_ipv4(gid) ? gid.raw[12] == kLoopbackNet : gid == kIpv6Loopback;
}

struct Place {
  const core::DeviceEntry* device;
  const GidEntry* entry;
};

std::optional<Place> place_of(const std::vector<core::DeviceEntry>& devices, const Gid& gid) {
  for (const core::DeviceEntry& device : devices)
    for (const GidEntry& entry : device.gids)
      if (entry.gid == gid) return Place{&device, &entry};
  return std::nullopt;
}

/// Returns a substitute for loopback addresses, which no port has. It is the first address of the family that is valid
/// beyond its link, of the first device that has one; otherwise such an address of another family.
Place stand_in(const std::vector<core::DeviceEntry>& devices, bool ipv4) {
  const auto first = [&](auto&& fits) -> std::optional<Place> {
    for (const core::DeviceEntry& device : devices)
      for (const GidEntry& entry : device.gids)
        if (fits(entry.gid)) return Place{&device, &entry};
    return std::nullopt;
  };
  const auto goes_far = [](const Gid& gid) { return base::is_ipv4(gid) || !base::is_link_local(gid); };
  if (const auto found = first([&](const Gid& gid) { return base::is_ipv4(gid) == ipv4 && goes_far(gid); }))
    return *found;
  if (const auto other = first(goes_far)) return *other;
  return {&devices.front(), &devices.front().gids.front()};
}

}  // namespace

Result<ConnectionRoute> Connections::find_address(const Gid& address) const {
  const std::vector<core::DeviceEntry>& devices = process_.devices();
  if (devices.empty() || devices.front().gids.empty()) return fail(ENODEV, "no NUPA device (check NUPA_DEVICES)");
  auto place = place_of(devices, address);
  if (!place && is_loopback(address)) place = stand_in(devices, base::is_ipv4(address));
  if (!place) {
    const std::vector<Gid>& own = process_.host_addresses();
    if (std::find(own.begin(), own.end(), address) == own.end())
      return fail(EADDRNOTAVAIL, base::gid_text(address), " is not an address of this host");
    return fail(ENODEV, "no NUPA device has address ", base::gid_text(address));
  }
  ConnectionRoute route;
  route.device = place->device->index;
  route.gid_index = place->entry->index;
  route.source = address;
  route.path.local = place->entry->gid;
  const auto mtu = process_.transports().mtu(*place->device);
  if (!mtu) return tl::unexpected(mtu.error());
  route.path.mtu = *mtu;
  return route;
}

Result<ConnectionRoute> Connections::find_route(const Gid& to, uint32_t scope, const Gid* from) const {
  // A thread that looks for a route does not poll, and its peers may wait for acknowledgements that the next poll would
  // send.
  for (progress::Poller* poller : process_.transports().pollers()) poller->finish_poll();
  const std::vector<core::DeviceEntry>& devices = process_.devices();
  if (is_loopback(to)) {
    auto route = find_address(from != nullptr ? *from : to);
    if (route) route->path.remote = route->path.local;
    return route;
  }
  if (const auto source = process_.transports().source_to(to); source && (from == nullptr || *from == *source)) {
    auto route = find_address(*source);
    if (route) (*route).path.remote = to;
    return route;
  }
  auto found = routes_.get({to, scope, from == nullptr ? std::nullopt : std::optional(*from)}, [&] {
    return net::find_route({to, 0, scope}, from);
  });
  Result<ConnectionRoute> route = fail(ENETUNREACH, "no route to the address");
  if (found) {
    route = find_address(found->source);
    // The kernel may choose an address that no device has, although the same interface has an address of a device.
    for (size_t i = 0; !route && from == nullptr && i < devices.size(); ++i)
      for (const GidEntry& entry : devices[i].gids)
        if (entry.interface_index == found->interface_index && base::is_ipv4(entry.gid) == base::is_ipv4(to)) {
          route = find_address(entry.gid);
          break;
        }
    if (!route && found->local && place_of(devices, to)) route = find_address(to);
  } else if (process_.transports().share_memory() && has_process_at(to)) {
    // The address belongs to a process that shares the runtime directory but no network.
    route = find_address(stand_in(devices, base::is_ipv4(to)).entry->gid);
  }
  if (!route) return found ? route : tl::unexpected(found.error());
  route->path.remote = to;
  // The path to another host may have a smaller MTU than the port.
  if (!(found && found->local)) {
    if (!core::names_group(to))  // a group has members on this host, too
      if (auto reached = check_reach(to); !reached) return tl::unexpected(reached.error());
    const auto way = process_.transports().mtu_to(to, scope);
    if (!way) return tl::unexpected(way.error());
    if (*way) route->path.mtu = std::min(route->path.mtu, **way);
  }
  return route;
}

}  // namespace nupa::cm
