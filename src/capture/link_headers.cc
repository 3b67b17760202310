// SPDX-License-Identifier: Apache-2.0
#include "capture/link_headers.h"

#include <cstring>

#include "base/gid.h"
#include "transport/roce/wire/wire.h"

namespace nupa::capture {
namespace {

constexpr uint32_t kIpv4Type = 0x0800;
constexpr uint32_t kIpv6Type = 0x86dd;
constexpr uint8_t kUdpProtocol = 17;
constexpr uint8_t kUsualHops = 64;
constexpr uint32_t kDontFragment = 0x4000;

class Writer {
 public:
  explicit Writer(std::byte* to) : at_(to) {}
  void u8(uint32_t value) { *at_++ = static_cast<std::byte>(value); }
  void u16(uint32_t value) {
    u8(value >> 8);
    u8(value);
  }
  void u32(uint32_t value) {
    u16(value >> 16);
    u16(value);
  }
  void raw(const void* from, size_t bytes) {
    std::memcpy(at_, from, bytes);
    at_ += bytes;
  }
  std::byte* at() const { return at_; }

 private:
  std::byte* at_;
};

void write_link_address(Writer& to, const Gid& address) {
  constexpr uint8_t kFirstOfIpv4Group = 0xe0;
  constexpr uint8_t kIpv6Group = 0xff;
  const bool ipv4 = base::is_ipv4(address);
  if (ipv4 && (address.raw[12] & 0xf0) == kFirstOfIpv4Group) {  // RFC 1112 6.4
    to.u16(0x0100);
    to.u8(0x5e);
    to.u8(address.raw[13] & 0x7fu);
    to.raw(&address.raw[14], 2);
    return;
  }
  to.u16(!ipv4 && address.raw[0] == kIpv6Group ? 0x3333 : 0x0200);  // RFC 2464 7; IEEE 802: locally administered
  to.raw(&address.raw[12], 4);
}

}  // namespace

uint32_t write_link_headers(const Datagram& datagram, uint32_t payload, LinkHeaders* headers) {
  const bool ipv4 = base::is_ipv4(datagram.destination);
  const uint32_t udp_length = kUdpBytes + payload;
  const uint32_t hops = datagram.hop_limit != 0 ? datagram.hop_limit : kUsualHops;
  Writer to(headers->data());
  write_link_address(to, datagram.destination);
  write_link_address(to, datagram.source);
  to.u16(ipv4 ? kIpv4Type : kIpv6Type);
  if (ipv4) {
    to.u8(0x45);
    to.u8(datagram.traffic_class);
    to.u16(kIpv4Bytes + udp_length);
    to.u16(datagram.identification);
    to.u16(kDontFragment);
    to.u8(hops);
    to.u8(kUdpProtocol);
    to.u16(0);
    to.raw(&datagram.source.raw[base::kIpv4InGid], 4);
    to.raw(&datagram.destination.raw[base::kIpv4InGid], 4);
  } else {
    to.u32(6u << 28 | uint32_t{datagram.traffic_class} << 20 | (datagram.flow_label & 0xfffff));
    to.u16(udp_length);
    to.u8(kUdpProtocol);
    to.u8(hops);
    to.raw(datagram.source.raw.data(), datagram.source.raw.size());
    to.raw(datagram.destination.raw.data(), datagram.destination.raw.size());
  }
  to.u16(datagram.source_port);
  to.u16(roce::kUdpPort);
  to.u16(udp_length);
  to.u16(0);
  return static_cast<uint32_t>(to.at() - headers->data());
}

}  // namespace nupa::capture
