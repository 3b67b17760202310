// SPDX-License-Identifier: Apache-2.0
#include "capture/file/frame.h"

#include <cstring>

#include "base/gid.h"
#include "capture/link_headers.h"
#include "transport/roce/wire/icrc.h"

namespace nupa::capture {
namespace {

uint32_t load16(const std::byte* from) {
  return std::to_integer<uint32_t>(from[0]) << 8 | std::to_integer<uint32_t>(from[1]);
}

void store16(std::byte* to, uint32_t value) {
  to[0] = static_cast<std::byte>(value >> 8);
  to[1] = static_cast<std::byte>(value);
}

/// The ones' complement sum of RFC 1071.
class Sum {
 public:
  void add(std::span<const std::byte> bytes) {
    size_t at = 0;
    for (; at + 1 < bytes.size(); at += 2) sum_ += load16(&bytes[at]);
    if (at < bytes.size()) sum_ += std::to_integer<uint64_t>(bytes[at]) << 8;
  }
  void add(uint32_t number) { sum_ += number; }
  uint32_t checksum() const {
    uint64_t folded = sum_;
    while (folded >> 16 != 0) folded = (folded & 0xffff) + (folded >> 16);
    return static_cast<uint32_t>(~folded & 0xffff);
  }

 private:
  uint64_t sum_ = 0;
};

/// The places of a frame's headers.
struct Layout {
  bool ipv4 = false;
  size_t udp = 0;
  size_t payload = 0;
};

Layout layout_of(std::span<const std::byte> frame) {
  constexpr uint32_t kIpv4Type = 0x0800;
  Layout layout;
  layout.ipv4 = frame.size() >= kEthernetBytes && load16(&frame[kEthernetBytes - 2]) == kIpv4Type;
  layout.udp = kEthernetBytes + (layout.ipv4 ? kIpv4Bytes : kIpv6Bytes);
  layout.payload = layout.udp + kUdpBytes;
  return layout;
}

constexpr size_t kIdentificationAt = kEthernetBytes + 4;
constexpr size_t kIpv4ChecksumAt = kEthernetBytes + 10;
constexpr size_t kIpv4SourceAt = kEthernetBytes + 12;
constexpr size_t kIpv6SourceAt = kEthernetBytes + 8;
constexpr size_t kUdpChecksum = 6;

roce::Route route_of(std::span<const std::byte> frame, const Layout& layout) {
  roce::Route route;
  if (layout.ipv4) {
    route.source = base::ipv4_gid(&frame[kIpv4SourceAt]);
    route.destination = base::ipv4_gid(&frame[kIpv4SourceAt + 4]);
  } else {
    std::memcpy(route.source.raw.data(), &frame[kIpv6SourceAt], route.source.raw.size());
    std::memcpy(route.destination.raw.data(), &frame[kIpv6SourceAt + 16], route.destination.raw.size());
  }
  route.source_port = static_cast<uint16_t>(load16(&frame[layout.udp]));
  route.destination_port = static_cast<uint16_t>(load16(&frame[layout.udp + 2]));
  return route;
}

uint32_t icrc_of(const roce::Route& route, uint16_t identification, std::span<const std::byte> payload) {
  const auto length = static_cast<uint32_t>(payload.size());
  return roce::icrc_of_state(
      roce::icrc_of_headers(route, identification, length, payload.data(), length - roce::kIcrcBytes));
}

/// Completes the CRC, and the identification if it is not known.
Crc complete_crc(const Record& record, std::span<std::byte> frame, const Layout& layout) {
  const std::span<std::byte> payload = frame.subspan(layout.payload);
  if (payload.size() < roce::kShortestPacket) return Crc::kUnknown;
  std::byte* const at = &payload[payload.size() - roce::kIcrcBytes];
  const roce::Route shown = route_of(frame, layout);
  uint16_t identification = layout.ipv4 ? static_cast<uint16_t>(load16(&frame[kIdentificationAt])) : uint16_t{0};
  if ((record.flags & frame_flag::kSynthetic) != 0) {
    roce::store_icrc(icrc_of(shown, identification, payload), at);
    return Crc::kRight;
  }
  if ((record.flags & frame_flag::kWithoutCrc) != 0) return Crc::kOmitted;
  roce::Route real = shown;
  real.destination_port = record.udp_port;
  const uint32_t found = roce::load_icrc(at);
  if (layout.ipv4 && (record.flags & frame_flag::kKnownId) == 0) {
    const auto seen = roce::identification_of(icrc_of(real, 0, payload), found, static_cast<uint32_t>(payload.size()));
    identification = seen.value_or(0);
    store16(&frame[kIdentificationAt], identification);
  }
  const uint32_t difference = found ^ icrc_of(real, identification, payload);
  roce::store_icrc(icrc_of(shown, identification, payload) ^ difference, at);
  return difference == 0 ? Crc::kRight : Crc::kWrong;
}

void complete_checksums(std::span<std::byte> frame, const Layout& layout, bool is_whole) {
  if (layout.ipv4) {
    store16(&frame[kIpv4ChecksumAt], 0);
    Sum sum;
    sum.add(frame.subspan(kEthernetBytes, kIpv4Bytes));
    store16(&frame[kIpv4ChecksumAt], sum.checksum());
    return;  // over IPv4, UDP may do without (RFC 768)
  }
  constexpr uint32_t kUdpProtocol = 17;
  std::byte* const checksum = &frame[layout.udp + kUdpChecksum];
  store16(checksum, 0);
  Sum sum;
  sum.add(frame.subspan(kIpv6SourceAt, 32));
  sum.add(load16(&frame[layout.udp + 4]));
  sum.add(kUdpProtocol);
  sum.add(frame.subspan(layout.udp));
  // 0 would mean that there is none (RFC 8200 8.1). Without the whole packet nobody can check it.
  constexpr uint32_t kZero = 0xffff;
  const uint32_t computed = is_whole ? sum.checksum() : 0;
  store16(checksum, computed == 0 ? kZero : computed);
}

}  // namespace

Crc complete_frame(const Record& record, std::span<std::byte> frame) {
  const Layout layout = layout_of(frame);
  if (frame.size() < layout.payload) return Crc::kUnknown;
  const bool is_whole = frame.size() == record.length;
  const Crc crc = is_whole ? complete_crc(record, frame, layout) : Crc::kUnknown;
  complete_checksums(frame, layout, is_whole);
  return crc;
}

}  // namespace nupa::capture
