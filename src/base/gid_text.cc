// SPDX-License-Identifier: Apache-2.0
#include "base/gid_text.h"

#include <arpa/inet.h>

#include "base/gid.h"

namespace nupa::base {

std::string gid_text(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  const bool ipv4 = is_ipv4(gid);
  inet_ntop(ipv4 ? AF_INET : AF_INET6, &gid.raw[ipv4 ? 12 : 0], text, sizeof text);
  return text;
}

}  // namespace nupa::base
