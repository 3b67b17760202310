// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <arpa/inet.h>

#include <array>
#include <cstddef>
#include <cstring>

#include <nupa/types.h>

namespace nupa::core {

/// The global route header: 40 bytes before the payload of each received datagram (IBTA 11.4.1.2). For RoCEv2 over IPv4
/// an adapter puts the IPv4 header into the last 20 bytes and marks that in a vendor-specific way. NUPA always writes
/// the header that verbs.h describes, for IPv4-mapped addresses as well.
constexpr uint32_t kGrhBytes = 40;
using RouteHeader = std::array<std::byte, kGrhBytes>;

inline RouteHeader make_route_header(const AddressVector& vector, const Gid& source, const Gid& destination,
                                     uint64_t payload) {
  constexpr uint8_t kIbTransport = 0x1b;
  // Base and datagram extended transport headers, invariant CRC.
  constexpr uint32_t kWireOverhead = 12 + 8 + 4;
  RouteHeader header{};
  const uint32_t first = htonl(6u << 28 | uint32_t{vector.traffic_class} << 20 | (vector.flow_label & 0xfffff));
  std::memcpy(header.data(), &first, 4);
  const uint16_t length = htons(static_cast<uint16_t>(kWireOverhead + payload));
  std::memcpy(&header[4], &length, 2);
  header[6] = std::byte{kIbTransport};
  header[7] = static_cast<std::byte>(vector.hop_limit);
  std::memcpy(&header[8], source.raw.data(), 16);
  std::memcpy(&header[24], destination.raw.data(), 16);
  return header;
}

}  // namespace nupa::core
