// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "net/udp_socket.h"

namespace nupa::net {

/// The largest IP packet in bytes that each interface of the addresses sends unfragmented. Errors: those of socket().
Result<uint32_t> interface_mtu(const std::vector<GidEntry>& addresses);

/// The same for packets to one address by the kernel's route, through interface `to.scope` if that is not 0. Returns 0
/// if there is no route. Errors: those of socket().
Result<uint32_t> route_mtu(const UdpAddress& to);

}  // namespace nupa::net
