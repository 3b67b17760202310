// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#include "rsockets/wire.h"

namespace nupa::rsockets {

/// Returns the header for an IPv4 or IPv6 address.
DatagramHeader header_of(const sockaddr_storage& address);
/// Returns the address, and the header's length in *length. False if the bytes are no valid header.
bool parse_header(const std::byte* data, size_t bytes, sockaddr_storage* address, uint32_t* length);

}  // namespace nupa::rsockets
