// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Packets of IPv4 and IPv6.
#include <gtest/gtest.h>

#include <cstring>

#include "netdev/ip_packet.h"
#include "netdev/prefix.h"

namespace nupa::netdev {

using Packet = std::vector<std::byte>;

inline Gid gid(const std::string& text) { return *address_from(text); }

inline void put(Packet& packet, size_t at, std::initializer_list<int> bytes) {
  for (const int byte : bytes) packet[at++] = static_cast<std::byte>(byte);
}

inline uint32_t word(const Packet& packet, size_t at) {
  return std::to_integer<uint32_t>(packet[at]) << 8 | std::to_integer<uint32_t>(packet[at + 1]);
}

/// The sum over bytes that carry a right checksum is all ones (RFC 1071).
inline uint32_t sum(std::span<const std::byte> bytes, uint32_t start = 0) {
  uint64_t total = start;
  for (size_t i = 0; i < bytes.size(); ++i) total += std::to_integer<uint64_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
  while (total > 0xffff) total = (total & 0xffff) + (total >> 16);
  return static_cast<uint32_t>(total);
}

/// 10.77.0.1 to 10.77.0.2, with a payload of counted bytes.
inline Packet ipv4(size_t payload, int protocol = 17, int flags = 0x40) {
  Packet packet(20 + payload);
  for (size_t i = 0; i < payload; ++i) packet[20 + i] = static_cast<std::byte>(i * 7);
  const int length = static_cast<int>(packet.size());
  put(packet, 0,
      {0x45, 0, length >> 8, length & 255, 0x12, 0x34, flags, 0, 64, protocol, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2});
  const uint32_t check = ~sum(std::span(packet).first(20)) & 0xffff;
  put(packet, 10, {static_cast<int>(check >> 8), static_cast<int>(check & 255)});
  return packet;
}

/// fd77::1 to fd77::2.
inline Packet ipv6(size_t payload, int next = 17) {
  Packet packet(40 + payload);
  const int length = static_cast<int>(payload);
  put(packet, 0, {0x60, 0, 0, 0, length >> 8, length & 255, next, 64, 0xfd, 0x77});
  put(packet, 23, {1, 0xfd, 0x77});
  put(packet, 39, {2});
  return packet;
}

inline std::optional<IpPacket> parse(const Packet& packet) { return IpPacket::parse(packet, packet.size()); }

}  // namespace nupa::netdev
