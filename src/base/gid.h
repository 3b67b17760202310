#pragma once
#include <algorithm>
#include <array>

#include <nupa/types.h>

namespace nupa::base {

/// Whether a GID is an IPv4 address, as ::ffff:a.b.c.d (IBTA annex A17).
inline bool is_ipv4(const Gid& gid) {
  static constexpr std::array<uint8_t, 12> kPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kPrefix.begin(), kPrefix.end(), gid.raw.begin());
}

/// Whether a GID is a link-local IPv6 address, fe80::/10 (RFC 4291 2.4).
inline bool is_link_local(const Gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

}  // namespace nupa::base
