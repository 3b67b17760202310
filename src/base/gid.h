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

}  // namespace nupa::base
