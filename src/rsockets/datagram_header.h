// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#include "rsockets/wire.h"

namespace nupa::rsockets {

/// The header that stands for an address. Both families.
DatagramHeader header_of(const sockaddr_storage& address);
/// Its length in *length; false if the bytes are no header.
bool parse_header(const std::byte* data, size_t bytes, sockaddr_storage* address, uint32_t* length);

}  // namespace nupa::rsockets
