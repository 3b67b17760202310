// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <netinet/in.h>
#include <nupa/types.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace nupa::base {

/// Position of the four octets of an IPv4 address in a GID.
constexpr size_t kIpv4InGid = 12;

/// The IPv4 address a.b.c.d as a GID: ::ffff:a.b.c.d (IBTA annex A17).
constexpr Gid ipv4_gid(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d}};
}

/// The same, from the four octets in network byte order, as packets hold them.
inline Gid ipv4_gid(const void* octets) {
  Gid gid = ipv4_gid(0, 0, 0, 0);
  std::memcpy(&gid.raw[kIpv4InGid], octets, gid.raw.size() - kIpv4InGid);
  return gid;
}
inline Gid ipv4_gid(const in_addr& address) { return ipv4_gid(&address.s_addr); }

/// True if a GID is an IPv4 address, ::ffff:a.b.c.d (IBTA annex A17).
inline bool is_ipv4(const Gid& gid) {
  static constexpr Gid kPrefix = ipv4_gid(0, 0, 0, 0);
  return std::equal(gid.raw.begin(), gid.raw.begin() + kIpv4InGid, kPrefix.raw.begin());
}

/// True if a GID is a link-local IPv6 address, fe80::/10 (RFC 4291 2.4).
inline bool is_link_local(const Gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

/// True if a GID is the unspecified address: 0.0.0.0 (RFC 1122 3.2.1.3) or :: (RFC 4291 2.5.2).
inline bool is_unspecified(const Gid& gid) { return gid == Gid{} || gid == ipv4_gid(0, 0, 0, 0); }

}  // namespace nupa::base
