#pragma once
#include <nupa/result.h>
#include <nupa/types.h>

#include <cstdint>
#include <string>

namespace nupa::netdev {

/// An address with the length of its network's prefix.
struct Prefix {
  Gid address;
  uint8_t length = 0;  ///< of the address in its own family: 0 to 32, 0 to 128

  bool is_ipv4() const;
  bool contains(const Gid& other) const;
  /// Of IPv4: the last address of the network.
  Gid broadcast() const;
  /// "10.77.0.1/24", "fd00::1/64"; EINVAL.
  static Result<Prefix> parse(const std::string& text);
  std::string text() const;
};
std::string text_of(const Gid& address);
/// 255.255.255.255 (RFC 919, 7).
bool is_limited_broadcast(const Gid& address);
/// The address of IPv6 within its link that a node has by its name.
Prefix link_local_of(const std::string& node);
/// EINVAL.
Result<Gid> address_from(const std::string& text);

}  // namespace nupa::netdev
