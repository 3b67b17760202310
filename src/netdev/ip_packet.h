#pragma once
/// Packets of IPv4 (RFC 791) and IPv6 (RFC 8200), as a device without a link layer has them.
#include <nupa/types.h>

#include <optional>
#include <span>
#include <vector>

#include "netdev/virtio_header.h"

namespace nupa::netdev {

using Bytes = std::span<const std::byte>;

constexpr size_t kMaxPacketBytes = 65535;
constexpr uint32_t kMinMtu = 1280;   ///< of IPv6 (RFC 8200, 5)
constexpr uint32_t kMaxMtu = 65520;  ///< what an interface of IPv4's length field and the kernel's headroom takes

/// What a packet's first header says. Addresses of IPv4 are ::ffff:a.b.c.d.
struct IpPacket {
  uint8_t version = 0;         ///< 4 or 6
  uint8_t protocol = 0;        ///< of what follows the first header
  bool may_be_cut = false;     ///< IPv4 without "don't fragment"
  bool is_later_part = false;  ///< a fragment, not the first
  uint16_t header_bytes = 0;   ///< of the first header, with IPv4's options
  uint32_t bytes = 0;          ///< of the packet
  Gid source;
  Gid destination;

  /// Nothing: these bytes are no packet, or not one whole packet. `header` has at least the first 60 bytes of it, or
  /// all.
  static std::optional<IpPacket> parse(Bytes header, size_t packet_bytes);
};

/// 224.0.0.0/4 or ff00::/8.
bool is_multicast(const Gid& address);

/// Whether the header fits the packet that it stands before: what the kernel is told to do to a packet is within it.
bool is_consistent(const VirtioHeader& header, const IpPacket& packet);

/// Bytes of the largest packet that a large segment stands for; of others, of the packet. The header is consistent.
uint32_t largest_part(const VirtioHeader& header, Bytes packet);

/// Makes the sum that the header has left open (RFC 1071). The header must be consistent.
void complete_checksum(const VirtioHeader& header, std::span<std::byte> packet);

/// An IPv4 packet as fragments (RFC 791, 3.2) of at most `mtu` bytes each, complete. It may be cut, has all its sums,
/// and is no large segment.
std::vector<std::vector<std::byte>> fragments_of(Bytes packet, uint32_t mtu);

/// The datagrams that a large segment of them (kGsoUdp) stands for, each with the sum of its pseudo-header only, as the
/// segment has it: `header` without its segments' part says where. The header is consistent.
std::vector<std::vector<std::byte>> datagrams_of(const VirtioHeader& header, Bytes packet);

/// Why a node does not send on what its own kernel gave it.
enum class Refusal : uint8_t {
  kHostUnreachable,
  kTooBig,
};
/// The ICMP message (RFC 792, 1191, 4443) to the packet's source, from its destination, which is how it passes a
/// reverse- path check. Nothing where none may be sent: about ICMP errors, later fragments, multicast.
std::optional<std::vector<std::byte>> icmp_about(Refusal refusal, Bytes packet, uint32_t mtu);

}  // namespace nupa::netdev
