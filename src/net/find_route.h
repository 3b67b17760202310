// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "net/udp_socket.h"

namespace nupa::net {

/// A route to an address by the kernel's routing tables and rules.
struct FoundRoute {
  Gid source;                    ///< the source address of packets: the requested one, or the kernel's choice
  uint32_t interface_index = 0;  ///< the outgoing interface; for an address of this host, the interface that has it
  bool local = false;            ///< the destination is an address of this host
  Gid gateway;  ///< the next router's address, perhaps of the other family; zero: the address is on the link
  bool operator==(const FoundRoute&) const = default;
};

/// Asks the kernel for a route (RTM_GETROUTE, rtnetlink(7)). Needs no privilege; any thread. `to.scope`: the interface
/// to use, 0: any. A link-local address with scope 0 uses the interface of `from`. The unspecified address is this
/// host's loopback address, as for connect(). `from`: the source address, one of this host; null or unspecified: the
/// kernel chooses. EINVAL: a link-local address without an interface, different families, or a blackhole route.
/// EADDRNOTAVAIL: `from` is not an address of this host, or the host has no source address. ENETUNREACH, EHOSTUNREACH,
/// EACCES (prohibited, or a broadcast address), ENODEV: errors of the kernel. EBADMSG: the kernel's answer is
/// malformed.
Result<FoundRoute> find_route(const UdpAddress& to, const Gid* from);

/// The part of find_route() that parses a message from the kernel, which may be any bytes. No value: the message has no
/// answer to request `sequence`.
Result<std::optional<FoundRoute>> read_route_reply(std::span<const std::byte> reply, uint32_t sequence);

}  // namespace nupa::net
