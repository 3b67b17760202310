// SPDX-License-Identifier: Apache-2.0
#include "netdev/ip_packet.h"

#include <algorithm>
#include <cstring>

#include "base/gid.h"

namespace nupa::netdev {
namespace {

constexpr size_t kIpv4Header = 20;
constexpr size_t kIpv6Header = 40;
constexpr uint32_t kTcpHeader = 20;  // without options
constexpr uint32_t kUdpHeader = 8;
constexpr uint8_t kIcmp = 1;
constexpr uint8_t kTcp = 6;
constexpr uint8_t kUdp = 17;
constexpr uint8_t kIcmp6 = 58;
constexpr uint16_t kDontFragment = 0x4000;
constexpr uint16_t kMoreFragments = 0x2000;
constexpr uint16_t kOffsetMask = 0x1fff;

uint8_t byte_at(Bytes bytes, size_t at) { return std::to_integer<uint8_t>(bytes[at]); }

uint16_t word_at(Bytes bytes, size_t at) {
  return static_cast<uint16_t>(byte_at(bytes, at) << 8 | byte_at(bytes, at + 1));
}

void put_word(std::span<std::byte> bytes, size_t at, uint32_t value) {
  bytes[at] = static_cast<std::byte>(value >> 8);
  bytes[at + 1] = static_cast<std::byte>(value);
}

/// Returns the ones' complement sum (RFC 1071), not folded and not complemented.
uint64_t sum_of(Bytes bytes, uint64_t sum = 0) {
  size_t at = 0;
  for (; at + 1 < bytes.size(); at += 2) sum += word_at(bytes, at);
  if (at < bytes.size()) sum += static_cast<uint64_t>(byte_at(bytes, at)) << 8;
  return sum;
}

uint16_t folded(uint64_t sum) {
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum);
}

void put_ipv4_checksum(std::span<std::byte> header) {
  put_word(header, 10, 0);
  put_word(header, 10, static_cast<uint16_t>(~folded(sum_of(header))));
}

Gid ipv4_at(Bytes bytes, size_t at) { return base::ipv4_gid(&bytes[at]); }

Gid ipv6_at(Bytes bytes, size_t at) {
  Gid gid;
  std::memcpy(gid.raw.data(), &bytes[at], gid.raw.size());
  return gid;
}

std::optional<IpPacket> parse_ipv4(Bytes header, size_t packet_bytes) {
  if (header.size() < kIpv4Header) return std::nullopt;
  IpPacket packet;
  packet.version = 4;
  packet.header_bytes = static_cast<uint16_t>((byte_at(header, 0) & 0xf) * 4);
  packet.bytes = static_cast<uint32_t>(packet_bytes);
  if (packet.header_bytes < kIpv4Header || packet.header_bytes > header.size() || word_at(header, 2) != packet_bytes)
    return std::nullopt;
  const uint16_t part = word_at(header, 6);
  // The reassembled packet may not exceed 65,535 bytes.
  if ((part & kOffsetMask) * 8u + packet_bytes - packet.header_bytes > kMaxPacketBytes) return std::nullopt;
  packet.may_be_cut = (part & kDontFragment) == 0;
  packet.is_later_part = (part & kOffsetMask) != 0;
  packet.protocol = byte_at(header, 9);
  packet.source = ipv4_at(header, 12);
  packet.destination = ipv4_at(header, 16);
  return packet;
}

std::optional<IpPacket> parse_ipv6(Bytes header, size_t packet_bytes) {
  if (header.size() < kIpv6Header || word_at(header, 4) + kIpv6Header != packet_bytes) return std::nullopt;
  IpPacket packet;
  packet.version = 6;
  packet.header_bytes = kIpv6Header;
  packet.bytes = static_cast<uint32_t>(packet_bytes);
  packet.protocol = byte_at(header, 6);
  packet.source = ipv6_at(header, 8);
  packet.destination = ipv6_at(header, 24);
  return packet;
}

/// An ICMP error message is never sent about another one (RFC 1122 3.2.2).
bool is_icmp_error(const IpPacket& ip, Bytes packet) {
  if (packet.size() <= ip.header_bytes) return false;
  const uint8_t type = byte_at(packet, ip.header_bytes);
  constexpr uint8_t kEchoReply = 0, kEcho = 8, kTimestamp = 13, kTimestampReply = 14;
  if (ip.version == 4)
    return ip.protocol == kIcmp && type != kEcho && type != kEchoReply && type != kTimestamp && type != kTimestampReply;
  return ip.protocol == kIcmp6 && type < 128;  // RFC 4443 2.1
}

std::vector<std::byte> icmp4_about(Refusal refusal, Bytes packet, uint32_t mtu) {
  constexpr size_t kQuoted = 548;  // fits a message of 576 bytes (RFC 1812, 4.3.2.3)
  constexpr uint8_t kUnreachable = 3, kHost = 1, kFragmentationNeeded = 4;
  const Bytes quoted = packet.first(std::min(packet.size(), kQuoted));
  std::vector<std::byte> made(kIpv4Header + 8 + quoted.size());
  made[0] = std::byte{0x45};
  put_word(made, 2, static_cast<uint32_t>(made.size()));
  made[8] = std::byte{64};
  made[9] = std::byte{kIcmp};
  std::memcpy(&made[12], &packet[16], 4);
  std::memcpy(&made[16], &packet[12], 4);
  put_ipv4_checksum(std::span(made).first(kIpv4Header));
  const std::span<std::byte> message = std::span(made).subspan(kIpv4Header);
  message[0] = std::byte{kUnreachable};
  message[1] = std::byte{refusal == Refusal::kTooBig ? kFragmentationNeeded : kHost};
  if (refusal == Refusal::kTooBig) put_word(message, 6, mtu);
  std::memcpy(&message[8], quoted.data(), quoted.size());
  put_word(message, 2, static_cast<uint16_t>(~folded(sum_of(message))));
  return made;
}

std::vector<std::byte> icmp6_about(Refusal refusal, Bytes packet, uint32_t mtu) {
  constexpr uint8_t kUnreachable = 1, kTooBig = 2, kAddress = 3;
  const Bytes quoted = packet.first(std::min(packet.size(), kMinMtu - kIpv6Header - 8));
  std::vector<std::byte> made(kIpv6Header + 8 + quoted.size());
  made[0] = std::byte{0x60};
  put_word(made, 4, static_cast<uint32_t>(8 + quoted.size()));
  made[6] = std::byte{kIcmp6};
  made[7] = std::byte{64};
  std::memcpy(&made[8], &packet[24], 16);
  std::memcpy(&made[24], &packet[8], 16);
  const std::span<std::byte> message = std::span(made).subspan(kIpv6Header);
  message[0] = std::byte{refusal == Refusal::kTooBig ? kTooBig : kUnreachable};
  message[1] = std::byte{refusal == Refusal::kTooBig ? uint8_t{0} : kAddress};
  if (refusal == Refusal::kTooBig) {
    put_word(message, 4, mtu >> 16);
    put_word(message, 6, mtu);
  }
  std::memcpy(&message[8], quoted.data(), quoted.size());
  // The sum includes the pseudo-header (RFC 8200, 8.1).
  const uint64_t pseudo = sum_of(Bytes(made).subspan(8, 32)) + message.size() + kIcmp6;
  put_word(message, 2, static_cast<uint16_t>(~folded(sum_of(message, pseudo))));
  return made;
}

}  // namespace

std::optional<IpPacket> IpPacket::parse(Bytes header, size_t packet_bytes) {
  if (header.empty() || packet_bytes > kMaxPacketBytes) return std::nullopt;
  switch (byte_at(header, 0) >> 4) {
    case 4:
      return parse_ipv4(header, packet_bytes);
    case 6:
      return parse_ipv6(header, packet_bytes);
    default:
      return std::nullopt;
  }
}

bool is_multicast(const Gid& address) {
  return base::is_ipv4(address) ? (address.raw[12] & 0xf0) == 0xe0 : address.raw[0] == 0xff;
}

bool is_consistent(const VirtioHeader& header, const IpPacket& packet) {
  const bool open = (header.flags & VirtioHeader::kNeedsChecksum) != 0;
  if (open && (header.csum_start < packet.header_bytes || header.csum_start + header.csum_offset + 2u > packet.bytes ||
               packet.is_later_part))
    return false;
  if (!header.is_large()) return true;
  if (!open || header.gso_size == 0 || packet.is_later_part) return false;
  uint32_t least = header.csum_start;
  switch (header.gso_type & ~VirtioHeader::kGsoEcn) {
    case VirtioHeader::kGsoTcp4:
      if (packet.version != 4 || packet.protocol != kTcp) return false;
      least += kTcpHeader;
      break;
    case VirtioHeader::kGsoTcp6:
      if (packet.version != 6) return false;
      least += kTcpHeader;
      break;
    case VirtioHeader::kGsoUdp:
      if (packet.version == 4 && packet.protocol != kUdp) return false;
      least += kUdpHeader;
      break;
    default:
      return false;
  }
  return least <= packet.bytes && header.hdr_len <= packet.bytes;
}

uint32_t largest_part(const VirtioHeader& header, Bytes packet) {
  if (!header.is_large()) return static_cast<uint32_t>(packet.size());
  // hdr_len is not used here: the kernel stores the length of the linear part in it, which may be more than the
  // headers.
  uint32_t headers = header.csum_start;
  if (header.is_datagrams())
    headers += kUdpHeader;
  else
    headers += static_cast<uint32_t>(byte_at(packet, header.csum_start + 12u) >> 4) * 4;
  return std::min<uint32_t>(static_cast<uint32_t>(packet.size()), headers + header.gso_size);
}

void complete_checksum(const VirtioHeader& header, std::span<std::byte> packet) {
  if ((header.flags & VirtioHeader::kNeedsChecksum) == 0) return;
  // The field already holds the pseudo-header's sum, so it is not cleared.
  const size_t at = size_t{header.csum_start} + header.csum_offset;
  const uint16_t sum = static_cast<uint16_t>(~folded(sum_of(packet.subspan(header.csum_start))));
  // In UDP (RFC 768) zero means "no checksum". TCP treats both zeros alike.
  put_word(packet, at, sum == 0 ? 0xffff : sum);
}

std::vector<std::vector<std::byte>> fragments_of(Bytes packet, uint32_t mtu) {
  const size_t header_bytes = size_t{byte_at(packet, 0) & 0xfu} * 4;
  const uint16_t before = word_at(packet, 6);
  const size_t step = (mtu - header_bytes) / 8 * 8;
  const Bytes payload = packet.subspan(header_bytes);
  std::vector<std::vector<std::byte>> parts;
  for (size_t at = 0; at < payload.size(); at += step) {
    const Bytes piece = payload.subspan(at, std::min(step, payload.size() - at));
    // All options are copied to each fragment. Those that need not be copied (RFC 791, 3.1) do no harm.
    std::vector<std::byte>& part = parts.emplace_back(header_bytes + piece.size());
    std::memcpy(part.data(), packet.data(), header_bytes);
    std::memcpy(part.data() + header_bytes, piece.data(), piece.size());
    const bool more = at + piece.size() < payload.size() || (before & kMoreFragments) != 0;
    put_word(part, 2, static_cast<uint32_t>(part.size()));
    put_word(part, 6, ((before & kOffsetMask) + at / 8) | (more ? kMoreFragments : 0));
    put_ipv4_checksum(std::span(part).first(header_bytes));
  }
  return parts;
}

std::vector<std::vector<std::byte>> datagrams_of(const VirtioHeader& header, Bytes packet) {
  const size_t udp = header.csum_start;
  const size_t headers_bytes = udp + kUdpHeader;
  constexpr size_t kLength = 4, kSum = 6;  // in the UDP header
  const Bytes payload = packet.subspan(headers_bytes);
  std::vector<std::vector<std::byte>> parts;
  for (size_t at = 0; at < payload.size(); at += header.gso_size) {
    const Bytes piece = payload.subspan(at, std::min<size_t>(header.gso_size, payload.size() - at));
    std::vector<std::byte>& part = parts.emplace_back(headers_bytes + piece.size());
    std::memcpy(part.data(), packet.data(), headers_bytes);
    std::memcpy(part.data() + headers_bytes, piece.data(), piece.size());
    const auto length = static_cast<uint16_t>(kUdpHeader + piece.size());
    put_word(part, udp + kLength, length);
    // Updates the sum for the pseudo-header's new length (RFC 1624).
    const uint16_t before = ~word_at(packet, udp + kLength);
    put_word(part, udp + kSum, folded(uint64_t{word_at(packet, udp + kSum)} + before + length));
    if (byte_at(packet, 0) >> 4 == 6) {
      put_word(part, 4, static_cast<uint32_t>(part.size() - kIpv6Header));
      continue;
    }
    put_word(part, 2, static_cast<uint32_t>(part.size()));
    put_word(part, 4, static_cast<uint16_t>(word_at(packet, 4) + parts.size() - 1));
    put_ipv4_checksum(std::span(part).first(size_t{byte_at(packet, 0) & 0xfu} * 4));
  }
  return parts;
}

std::optional<std::vector<std::byte>> icmp_about(Refusal refusal, Bytes packet, uint32_t mtu) {
  const auto ip = IpPacket::parse(packet, packet.size());
  if (!ip || ip->is_later_part || is_multicast(ip->destination) || is_multicast(ip->source) ||
      is_icmp_error(*ip, packet))
    return std::nullopt;
  return ip->version == 4 ? icmp4_about(refusal, packet, mtu) : icmp6_about(refusal, packet, mtu);
}

}  // namespace nupa::netdev
