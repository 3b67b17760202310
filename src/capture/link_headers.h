// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The headers in front of a packet's base transport header: Ethernet, IPv4 or IPv6, UDP. Sockets do not show them, so
/// they are made from what a socket shows. Any thread.

#include <array>
#include <cstddef>
#include <cstdint>

#include <nupa/types.h>

namespace nupa::capture {

/// The UDP datagram of a packet, with the addresses of its IP header.
struct Datagram {
  Gid source{};  ///< IPv4 addresses are ::ffff:a.b.c.d; both are of one family
  Gid destination{};
  uint16_t source_port = 0;
  uint16_t destination_port = 0;
  uint8_t traffic_class = 0;  ///< with its congestion bits
  uint8_t hop_limit = 0;      ///< 0: not known
  uint32_t flow_label = 0;
  uint16_t identification = 0;  ///< IPv4
};

constexpr uint32_t kEthernetBytes = 14;
constexpr uint32_t kIpv4Bytes = 20;
constexpr uint32_t kIpv6Bytes = 40;
constexpr uint32_t kUdpBytes = 8;
using LinkHeaders = std::array<std::byte, kEthernetBytes + kIpv6Bytes + kUdpBytes>;

/// Writes the headers of a datagram with `payload` bytes, without checksums and with UDP port 4791. Returns their
/// bytes. Link addresses are locally administered ones that hold the end of the IP address, or those of a group.
uint32_t write_link_headers(const Datagram& datagram, uint32_t payload, LinkHeaders* to);

}  // namespace nupa::capture
