// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <netinet/in.h>
#include <nupa/types.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>

#include "base/gid.h"

namespace nupa::ccl {

/// An address and a port for socket calls: sockaddr_in if the address is an IPv4 address, otherwise sockaddr_in6.
class SocketAddress {
 public:
  SocketAddress(const Gid& address, uint16_t port) {
    if (base::is_ipv4(address)) {
      v4_.sin_family = AF_INET;
      v4_.sin_port = htons(port);
      std::memcpy(&v4_.sin_addr, &address.raw[12], sizeof v4_.sin_addr);
    } else {
      v6_.sin6_family = AF_INET6;
      v6_.sin6_port = htons(port);
      std::memcpy(&v6_.sin6_addr, address.raw.data(), sizeof v6_.sin6_addr);
    }
  }
  int family() const { return any_.sa_family; }
  uint16_t port() const { return ntohs(family() == AF_INET ? v4_.sin_port : v6_.sin6_port); }
  sockaddr* get() { return &any_; }
  socklen_t length() const { return family() == AF_INET ? sizeof v4_ : sizeof v6_; }

 private:
  union {
    sockaddr any_;
    sockaddr_in v4_;
    sockaddr_in6 v6_{};
  };
};

/// Converts an IPv4 or IPv6 address.
inline Gid gid_of(const sockaddr* address) {
  if (address->sa_family == AF_INET) return base::ipv4_gid(reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
  Gid gid;
  std::memcpy(gid.raw.data(), &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, gid.raw.size());
  return gid;
}

}  // namespace nupa::ccl
