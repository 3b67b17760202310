// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>
#include <nupa/types.h>

#include <cstdint>
#include <string>

namespace nupa::netdev {

/// An address with the prefix length of its network.
struct Prefix {
  Gid address;
  uint8_t length = 0;  ///< within the address's own family: 0 to 32, or 0 to 128

  bool is_ipv4() const;
  bool contains(const Gid& other) const;
  /// Returns the last address of an IPv4 network.
  Gid broadcast() const;
  /// Parses "10.77.0.1/24" or "fd00::1/64". Returns EINVAL if the text is invalid.
  static Result<Prefix> parse(const std::string& text);
  std::string text() const;
};
std::string text_of(const Gid& address);
/// True for 255.255.255.255 (RFC 919, 7).
bool is_limited_broadcast(const Gid& address);
/// Returns the IPv6 link-local address that a node derives from its name.
Prefix link_local_of(const std::string& node);
/// Returns EINVAL if the text is no address.
Result<Gid> address_from(const std::string& text);

}  // namespace nupa::netdev
