// SPDX-License-Identifier: Apache-2.0
#include "net/route.h"

#include <net/if.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/gid.h"
#include "base/system_error.h"
#include "base/unique_fd.h"

namespace nupa::net {
namespace {

constexpr uint32_t kLargest = 65536;  // the MTU of the loopback interface
constexpr const char* kNoSocket = "cannot open a socket to look up an MTU";

}  // namespace

Result<uint32_t> interface_mtu(const std::vector<GidEntry>& addresses) {
  base::UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return base::fail_call(errno, kNoSocket);
  uint32_t least = kLargest;
  for (const GidEntry& entry : addresses) {
    ifreq request{};
    // SIOCGIFNAME and not if_indextoname(), which opens another socket.
    request.ifr_ifindex = static_cast<int>(entry.interface_index);
    if (entry.interface_index == 0 || ioctl(fd.get(), SIOCGIFNAME, &request) != 0) continue;
    if (ioctl(fd.get(), SIOCGIFMTU, &request) == 0) least = std::min(least, static_cast<uint32_t>(request.ifr_mtu));
  }
  return least;
}

Result<uint32_t> route_mtu(const UdpAddress& to) {
  const bool ipv4 = base::is_ipv4(to.address);
  base::UniqueFd fd(socket(ipv4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return base::fail_call(errno, kNoSocket);
  // Unprivileged users may do this from Linux 5.7 on.
  const auto interface = static_cast<int>(to.scope);
  if (interface != 0) setsockopt(fd.get(), SOL_SOCKET, SO_BINDTOIFINDEX, &interface, sizeof interface);
  int result;
  if (ipv4) {
    sockaddr_in peer{};
    peer.sin_family = AF_INET;
    peer.sin_port = htons(to.port);
    std::memcpy(&peer.sin_addr, &to.address.raw[12], 4);
    result = connect(fd.get(), reinterpret_cast<const sockaddr*>(&peer), sizeof peer);
  } else {
    sockaddr_in6 peer{};
    peer.sin6_family = AF_INET6;
    peer.sin6_port = htons(to.port);
    peer.sin6_scope_id = to.scope;
    std::memcpy(&peer.sin6_addr, to.address.raw.data(), 16);
    result = connect(fd.get(), reinterpret_cast<const sockaddr*>(&peer), sizeof peer);
  }
  int mtu = 0;
  socklen_t length = sizeof mtu;
  if (result != 0 ||
      getsockopt(fd.get(), ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_MTU : IPV6_MTU, &mtu, &length) != 0)
    return 0;
  return static_cast<uint32_t>(mtu);
}

}  // namespace nupa::net
