// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Packets of IPv4 (RFC 791) and IPv6 (RFC 8200), without a link layer.
#include <nupa/types.h>

#include <optional>
#include <span>
#include <vector>

#include "netdev/virtio_header.h"

namespace nupa::netdev {

using Bytes = std::span<const std::byte>;

constexpr size_t kMaxPacketBytes = 65535;
constexpr uint32_t kMinMtu = 1280;   ///< IPv6's minimum (RFC 8200, 5)
constexpr uint32_t kMaxMtu = 65520;  ///< limited by IPv4's length field and the kernel's headroom

/// The fields of a packet's first header. IPv4 addresses are stored as ::ffff:a.b.c.d.
struct IpPacket {
  uint8_t version = 0;         ///< 4 or 6
  uint8_t protocol = 0;        ///< protocol after the first header
  bool may_be_cut = false;     ///< IPv4 without "don't fragment"
  bool is_later_part = false;  ///< a fragment that is not the first one
  uint16_t header_bytes = 0;   ///< bytes of the first header, with IPv4's options
  uint32_t bytes = 0;          ///< bytes of the packet
  Gid source;
  Gid destination;

  /// Returns nothing if the bytes are not exactly one whole packet. `header` must have at least the first 60 bytes, or
  /// all bytes of a shorter packet.
  static std::optional<IpPacket> parse(Bytes header, size_t packet_bytes);
};

/// True for 224.0.0.0/4 and ff00::/8.
bool is_multicast(const Gid& address);

/// True if the header fits its packet: everything that it asks the kernel to do stays within the packet.
bool is_consistent(const VirtioHeader& header, const IpPacket& packet);

/// Returns the size of the largest packet in a large segment, or the size of the packet itself. The header must be
/// consistent.
uint32_t largest_part(const VirtioHeader& header, Bytes packet);

/// Computes the checksum that the header leaves open (RFC 1071). The header must be consistent.
void complete_checksum(const VirtioHeader& header, std::span<std::byte> packet);

/// Returns an IPv4 packet as complete fragments (RFC 791, 3.2) of at most `mtu` bytes. The packet must permit
/// fragments, must have all its checksums, and must not be a large segment.
std::vector<std::vector<std::byte>> fragments_of(Bytes packet, uint32_t mtu);

/// Returns the datagrams of a large segment (kGsoUdp). Like the segment, each has only the checksum of its
/// pseudo-header; `header` without its segment fields gives the place. The header must be consistent.
std::vector<std::vector<std::byte>> datagrams_of(const VirtioHeader& header, Bytes packet);

/// Why a node does not forward a packet from the local kernel.
enum class Refusal : uint8_t {
  kHostUnreachable,
  kTooBig,
};
/// Returns the ICMP message (RFC 792, 1191, 4443) to the packet's source. It comes from the packet's destination, so it
/// passes a reverse-path check. Returns nothing for ICMP errors, later fragments and multicast, about which no message
/// may be sent.
std::optional<std::vector<std::byte>> icmp_about(Refusal refusal, Bytes packet, uint32_t mtu);

}  // namespace nupa::netdev
