// SPDX-License-Identifier: Apache-2.0
#include "netdev/prefix.h"

#include <arpa/inet.h>
#include <nettle/sha2.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "netdev/ip_packet.h"
#include "base/gid.h"
#include "base/gid_text.h"

namespace nupa::netdev {

bool Prefix::is_ipv4() const { return base::is_ipv4(address); }

bool Prefix::contains(const Gid& other) const {
  if (is_ipv4() != base::is_ipv4(other)) return false;
  uint32_t bits = length + (is_ipv4() ? 96u : 0u);
  for (size_t i = 0; i < 16 && bits > 0; ++i) {
    const uint32_t here = std::min(bits, 8u);
    const auto mask = static_cast<uint8_t>(0xff00 >> here);
    if (((address.raw[i] ^ other.raw[i]) & mask) != 0) return false;
    bits -= here;
  }
  return true;
}

Gid Prefix::broadcast() const {
  Gid last = address;
  for (uint32_t bit = 96u + length; bit < 128; ++bit) last.raw[bit / 8] |= static_cast<uint8_t>(0x80 >> bit % 8);
  return last;
}

std::string text_of(const Gid& address) { return base::gid_text(address); }

bool is_limited_broadcast(const Gid& address) { return address == base::ipv4_gid(255, 255, 255, 255); }

Prefix link_local_of(const std::string& node) {
  constexpr uint8_t kLength = 64;
  Prefix prefix{{}, kLength};
  prefix.address.raw[0] = 0xfe;
  prefix.address.raw[1] = 0x80;
  sha256_ctx context;
  sha256_init(&context);
  sha256_update(&context, node.size(), reinterpret_cast<const uint8_t*>(node.data()));
  sha256_digest(&context, 8, &prefix.address.raw[8]);
  return prefix;
}

Result<Gid> address_from(const std::string& text) {
  in_addr ipv4;
  if (inet_pton(AF_INET, text.c_str(), &ipv4) == 1) return base::ipv4_gid(ipv4);
  Gid gid;
  if (inet_pton(AF_INET6, text.c_str(), gid.raw.data()) == 1) return gid;
  return fail(EINVAL, "not an IPv4 or IPv6 address");
}

Result<Prefix> Prefix::parse(const std::string& text) {
  const size_t slash = text.find('/');
  auto address = address_from(text.substr(0, slash));
  if (!address) return tl::unexpected(address.error());
  Prefix prefix{*address, 0};
  const uint8_t most = prefix.is_ipv4() ? 32 : 128;
  prefix.length = most;
  if (slash != text.npos) {
    const char* const end = text.data() + text.size();
    const auto [read, error] = std::from_chars(text.data() + slash + 1, end, prefix.length);
    if (error != std::errc() || read != end || prefix.length > most)
      return fail(EINVAL, "no valid prefix length after the slash");
  }
  if (is_multicast(*address) || base::is_unspecified(*address) || is_limited_broadcast(*address))
    return fail(EINVAL, "not a unicast address");
  return prefix;
}

std::string Prefix::text() const { return text_of(address) + "/" + std::to_string(length); }

}  // namespace nupa::netdev
