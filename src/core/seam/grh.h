// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <arpa/inet.h>

#include <array>
#include <cstddef>
#include <cstring>

#include <nupa/types.h>

namespace nupa::core {

/// Before the payload of each datagram stand 40 bytes (IBTA 11.4.1.2): a global route header. Over UDP and IPv4 an
/// adapter would show the IPv4 header in the last 20 of them and tell so beside the completion in a way of its own;
/// here it is the header that verbs.h describes, also for addresses that map IPv4.
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
