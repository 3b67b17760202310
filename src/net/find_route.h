#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "net/udp_socket.h"

namespace nupa::net {

/// The way to an address as the kernel's routing tables (and their rules) have it.
struct FoundRoute {
  Gid source;                    ///< what packets leave with: the one asked for, else the kernel's choice
  uint32_t interface_index = 0;  ///< they leave by it; for an address of this host: the one that has it
  bool local = false;            ///< it is an address of this host
  Gid gateway;                   ///< the next router's address, perhaps of the other family; zero: on the link itself
  bool operator==(const FoundRoute&) const = default;
};

/// Asks the kernel (RTM_GETROUTE, rtnetlink(7)) as any user may; any thread. `to.scope`: through this interface, 0:
/// any; a link-local address takes that of `from` for 0. The unspecified address is this host's loopback, as connect()
/// has it. `from`: leave with this address of this host; null or unspecified: the kernel chooses. EINVAL: a link-local
/// address without interface; families differ; a blackhole. EADDRNOTAVAIL: `from` is not this host's, or it has none to
/// go with. ENETUNREACH, EHOSTUNREACH, EACCES (prohibited, or a broadcast address), ENODEV: as the kernel says.
/// EBADMSG: its answer makes no sense.
Result<FoundRoute> find_route(const UdpAddress& to, const Gid* from);

/// Part of it: reads what has come from the kernel, any bytes. Nothing: no answer to request `sequence` is among it.
Result<std::optional<FoundRoute>> read_route_reply(std::span<const std::byte> reply, uint32_t sequence);

}  // namespace nupa::net
