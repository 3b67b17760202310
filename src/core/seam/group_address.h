// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "base/gid.h"

namespace nupa::core {

/// Queue pair number of everybody in a group (IBTA 10.5.2).
constexpr uint32_t kGroupQpn = 0xffffff;

/// Whether a GID names a multicast group: one of IPv6 (ff00::/8), or an IPv4 one (224.0.0.0/4) in the form
/// ::ffff:a.b.c.d (IBTA annex A17).
inline bool names_group(const Gid& gid) {
  constexpr uint8_t kIpv6Group = 0xff;
  constexpr uint8_t kIpv4Groups = 0xe0;
  return gid.raw[0] == kIpv6Group || (base::is_ipv4(gid) && (gid.raw[12] & 0xf0) == kIpv4Groups);
}

}  // namespace nupa::core
