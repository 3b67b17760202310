// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/wire/icrc.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/crc32.h"
#include "base/gid.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kMaskedLink = 8;  // in place of the link header that InfiniBand has and Ethernet does not
constexpr uint32_t kIpv4Bytes = 20;
constexpr uint32_t kIpv6Bytes = 40;
constexpr uint32_t kUdpBytes = 8;
constexpr uint8_t kUdpProtocol = 17;
constexpr uint32_t kMaskedBthByte = 4;  // FECN, BECN and reserved bits, which switches set
constexpr uint32_t kIdentificationAt = 4;
constexpr std::byte kMask{0xff};

void put16(std::byte* to, uint32_t value) {
  to[0] = static_cast<std::byte>(value >> 8);
  to[1] = static_cast<std::byte>(value);
}

/// x to the power of -(8 n + 32) for n bytes after the identification, for n up to the longest packet.
struct Inverses {
  std::array<uint32_t, kIpv4Bytes + kUdpBytes + kMaxPacketBytes> of;
  Inverses() {
    // The order of x is 2^32 - 1 because the polynomial is primitive.
    constexpr uint64_t kOrder = 0xffffffff;
    uint32_t power = base::crc32_x_to(kOrder - 32);
    const uint32_t back_a_byte = base::crc32_x_to(kOrder - 8);
    for (uint32_t& entry : of) {
      entry = power;
      power = base::crc32_times(power, back_a_byte);
    }
  }
};

/// The effect of the identification's two bytes on the state at the end of the UDP header.
struct Effects {
  static constexpr uint32_t kBehind = kIpv4Bytes - kIdentificationAt - 2 + kUdpBytes;
  std::array<std::array<uint32_t, 256>, 2> of;
  Effects() {
    for (uint32_t which = 0; which < 2; ++which)
      for (uint32_t value = 0; value < 256; ++value) {
        std::array<std::byte, 2 + kBehind> bytes{};
        bytes[which] = static_cast<std::byte>(value);
        of[which][value] = base::crc32(0, bytes.data(), bytes.size());
      }
  }
};

/// Returns the state after the IP and UDP headers with identification 0.
uint32_t state_of_route(const Route& route, uint32_t udp_payload) {
  std::byte masked[kMaskedLink + kIpv6Bytes + kUdpBytes];
  std::byte* at = std::fill_n(masked, kMaskedLink, kMask);
  const uint32_t udp_length = kUdpBytes + udp_payload;
  if (base::is_ipv4(route.destination)) {
    at[0] = std::byte{0x45};
    at[1] = kMask;  // type of service
    put16(at + 2, kIpv4Bytes + udp_length);
    put16(at + kIdentificationAt, 0);
    put16(at + 6, 0x4000);  // do not fragment
    at[8] = kMask;          // time to live
    at[9] = std::byte{kUdpProtocol};
    at[10] = at[11] = kMask;  // header checksum
    std::memcpy(at + 12, &route.source.raw[12], 4);
    std::memcpy(at + 16, &route.destination.raw[12], 4);
    at += kIpv4Bytes;
  } else {
    at[0] = std::byte{0x6f};  // version; traffic class and flow label masked
    at[1] = at[2] = at[3] = kMask;
    put16(at + 4, udp_length);
    at[6] = std::byte{kUdpProtocol};
    at[7] = kMask;  // hop limit
    std::memcpy(at + 8, route.source.raw.data(), 16);
    std::memcpy(at + 24, route.destination.raw.data(), 16);
    at += kIpv6Bytes;
  }
  put16(at, route.source_port);
  put16(at + 2, route.destination_port);
  put16(at + 4, udp_length);
  at[6] = at[7] = kMask;  // checksum
  at += kUdpBytes;
  return base::crc32(~uint32_t{0}, masked, static_cast<size_t>(at - masked));
}

}  // namespace

uint32_t RouteStates::of(const Route& route, uint32_t udp_payload) {
  Known& known = all_[(udp_payload / 4 + 5u * route.source_port + 11u * route.destination_port) % kKnown];
  if (known.udp_payload != udp_payload || !(known.route == route))
    known = {route, udp_payload, state_of_route(route, udp_payload)};
  return known.state;
}

uint32_t icrc_of_headers(const Route& route, uint16_t identification, uint32_t udp_payload, const std::byte* headers,
                         uint32_t header_length, RouteStates* known) {
  uint32_t state = known != nullptr ? known->of(route, udp_payload) : state_of_route(route, udp_payload);
  if (identification != 0 && base::is_ipv4(route.destination)) {
    static const Effects effects;
    state ^= effects.of[0][identification >> 8] ^ effects.of[1][identification & 0xff];
  }
  std::byte masked[kBthBytes];
  std::memcpy(masked, headers, kBthBytes);
  masked[kMaskedBthByte] = kMask;
  state = base::crc32(state, masked, kBthBytes);
  return base::crc32(state, headers + kBthBytes, header_length - kBthBytes);
}

uint32_t continue_as_rxe(uint32_t state, const std::byte* headers, uint32_t header_length) {
  return base::crc32(state, headers, header_length);
}

void store_icrc(uint32_t icrc, std::byte* to) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::byte>(icrc >> (8 * i));
}

uint32_t load_icrc(const std::byte* from) {
  uint32_t icrc = 0;
  for (int i = 0; i < 4; ++i) icrc |= std::to_integer<uint32_t>(from[i]) << (8 * i);
  return icrc;
}

std::optional<uint16_t> identification_of(uint32_t computed, uint32_t found, uint32_t udp_payload) {
  if (computed == found) return uint16_t{0};
  static const Inverses inverses;
  const uint32_t behind = kIpv4Bytes - kIdentificationAt - 2 + kUdpBytes + udp_payload - kIcrcBytes;
  if (behind >= inverses.of.size()) return std::nullopt;
  const uint32_t difference = base::crc32_times(computed ^ found, inverses.of[behind]);
  if ((difference & 0xffff) != 0) return std::nullopt;
  // The CRC takes the lowest bit of a byte first, so the first byte stands in the lower half.
  const uint32_t bytes = difference >> 16;
  return static_cast<uint16_t>((bytes & 0xff) << 8 | bytes >> 8);
}

bool icrc_holds(const Route& route, const std::byte* data, uint32_t length, uint16_t most, uint16_t likely,
                const std::byte* soon, RouteStates* known) {
  if (length < kShortestPacket) return false;
  const bool ipv4 = base::is_ipv4(route.destination);
  uint32_t state = icrc_of_headers(route, ipv4 ? likely : uint16_t{0}, length, data, kBthBytes, known);
  state = base::crc32(state, data + kBthBytes, length - kBthBytes - kIcrcBytes, soon);
  const uint32_t computed = icrc_of_state(state);
  const uint32_t found = load_icrc(data + length - kIcrcBytes);
  if (computed == found) return true;
  if (most == 0 || !ipv4) return false;
  // The CRC is linear: the difference of the two CRCs gives the difference of the two identifications.
  const auto difference = identification_of(computed, found, length);
  return difference && static_cast<uint16_t>(*difference ^ likely) <= most;
}

bool icrc_holds_as_rxe(const Route& route, const std::byte* data, uint32_t length) {
  if (length < kShortestPacket || data[0] != std::byte{opcode_of(Service::kRc, Operation::kFlush)}) return false;
  const uint32_t headers = length - kIcrcBytes;
  const uint32_t state = continue_as_rxe(icrc_of_headers(route, 0, length, data, headers), data, headers);
  const uint32_t found = load_icrc(data + headers);
  if (icrc_of_state(state) == found) return true;
  // The headers are twice as far behind the identification.
  return base::is_ipv4(route.destination) &&
         identification_of(icrc_of_state(state), found, length + headers).has_value();
}

}  // namespace nupa::roce
