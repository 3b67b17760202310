// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "base/gid.h"

namespace nupa::core {

/// The destination queue pair number of multicast datagrams (IBTA 10.5.2).
constexpr uint32_t kGroupQpn = 0xffffff;

/// Returns whether a GID is a multicast group: an IPv6 group (ff00::/8), or an IPv4 group (224.0.0.0/4) in the form
/// ::ffff:a.b.c.d (IBTA annex A17).
inline bool names_group(const Gid& gid) {
  constexpr uint8_t kIpv6Group = 0xff;
  constexpr uint8_t kIpv4Groups = 0xe0;
  return gid.raw[0] == kIpv6Group || (base::is_ipv4(gid) && (gid.raw[12] & 0xf0) == kIpv4Groups);
}

}  // namespace nupa::core
