// SPDX-License-Identifier: Apache-2.0
#include "base/own_addresses.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstring>

#include "base/gid.h"

namespace nupa::base {

std::vector<OwnAddress> own_addresses() {
  std::vector<OwnAddress> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    OwnAddress own{{}, (at->ifa_flags & IFF_UP) != 0, (at->ifa_flags & IFF_LOOPBACK) != 0};
    if (at->ifa_addr->sa_family == AF_INET) {
      own.gid = ipv4_gid(reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr);
    } else if (at->ifa_addr->sa_family == AF_INET6) {
      std::memcpy(own.gid.raw.data(), &reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr, 16);
    } else {
      continue;
    }
    found.push_back(own);
  }
  freeifaddrs(list);
  return found;
}

}  // namespace nupa::base
