// SPDX-License-Identifier: Apache-2.0
#include "rsockets/datagram_header.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace nupa::rsockets {

DatagramHeader header_of(const sockaddr_storage& address) {
  DatagramHeader header{};
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    header.version = 4;
    header.length = kDatagramHeaderV4;
    header.port = in.sin_port;
    header.addr.ipv4 = in.sin_addr.s_addr;
  } else {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
    header.version = 6;
    header.length = kDatagramHeaderV6;
    header.port = in.sin6_port;
    header.addr.ipv6.flowinfo = in.sin6_flowinfo;
    std::memcpy(header.addr.ipv6.addr, &in.sin6_addr, sizeof in.sin6_addr);
  }
  return header;
}

bool parse_header(const std::byte* data, size_t bytes, sockaddr_storage* address, uint32_t* length) {
  DatagramHeader header{};
  if (bytes < kDatagramHeaderV4) return false;
  std::memcpy(&header, data, std::min(bytes, sizeof header));
  *address = {};
  if (header.version == 4 && header.length == kDatagramHeaderV4) {
    auto* in = reinterpret_cast<sockaddr_in*>(address);
    in->sin_family = AF_INET;
    in->sin_port = header.port;
    in->sin_addr.s_addr = header.addr.ipv4;
  } else if (header.version == 6 && header.length == kDatagramHeaderV6 && bytes >= kDatagramHeaderV6) {
    auto* in = reinterpret_cast<sockaddr_in6*>(address);
    in->sin6_family = AF_INET6;
    in->sin6_port = header.port;
    in->sin6_flowinfo = header.addr.ipv6.flowinfo;
    std::memcpy(&in->sin6_addr, header.addr.ipv6.addr, sizeof in->sin6_addr);
  } else {
    return false;
  }
  *length = header.length;
  return true;
}

}  // namespace nupa::rsockets
