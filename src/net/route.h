#pragma once
#include <vector>

#include "net/udp_socket.h"

namespace nupa::net {

/// Bytes of an IP packet that leaves whole by each of the interfaces that the addresses are of. Errors: those of
/// socket(), when it cannot be asked for.
Result<uint32_t> interface_mtu(const std::vector<GidEntry>& addresses);

/// The same for packets to one address, as the kernel knows the way, through interface `to.scope` if that is not 0; 0:
/// it knows none. Errors: those of socket().
Result<uint32_t> route_mtu(const UdpAddress& to);

}  // namespace nupa::net
