// SPDX-License-Identifier: Apache-2.0
#include "net/find_route.h"

#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/gid.h"
#include "base/gid_text.h"
#include "base/system_error.h"
#include "base/unique_fd.h"
#include "progress/descriptors.h"

namespace nupa::net {
namespace {

constexpr size_t kMaxReply = 8192;    // the kernel's limit for one message (NLMSG_GOODSIZE)
constexpr time_t kAnswerSeconds = 5;  // the kernel answers within the request; this only prevents an endless wait
constexpr size_t kIpv4Bytes = 4, kIpv6Bytes = 16;
constexpr int kMaxForeign = 64;  // datagrams of other senders before the answer

size_t address_bytes(int family) { return family == AF_INET ? kIpv4Bytes : kIpv6Bytes; }
int family_of(const Gid& gid) { return base::is_ipv4(gid) ? AF_INET : AF_INET6; }

Gid gid_of(std::span<const std::byte> address) {
  if (address.size() == kIpv4Bytes) return base::ipv4_gid(address.data());
  Gid gid;
  std::memcpy(gid.raw.data(), address.data(), kIpv6Bytes);
  return gid;
}

Gid loopback_of(int family) {
  if (family == AF_INET) return base::ipv4_gid(127, 0, 0, 1);
  Gid gid;
  gid.raw[15] = 1;
  return gid;
}

/// The interface that has the address, `scope` if several have it. 0: none has, because the address belongs to a local
/// network.
uint32_t owner_of(const Gid& gid, uint32_t scope) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return 0;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> holder(list, freeifaddrs);
  const int family = family_of(gid);
  const size_t bytes = address_bytes(family);
  uint32_t owner = 0;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != family) continue;
    const void* address = family == AF_INET
                              ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr)
                              : &reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr;
    if (std::memcmp(address, &gid.raw[kIpv6Bytes - bytes], bytes) != 0) continue;
    const uint32_t index = if_nametoindex(at->ifa_name);
    if (owner == 0 || index == scope) owner = index;
  }
  return owner;
}

/// Reads `T` from the front of the bytes, which need not be aligned.
template <class T>
T front(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

/// The bytes behind a record of `length` bytes, which is padded to 4 bytes (NLMSG_ALIGNTO, RTA_ALIGNTO).
std::span<const std::byte> after(std::span<const std::byte> bytes, size_t length) {
  return bytes.subspan(std::min(bytes.size(), NLMSG_ALIGN(length)));
}

/// Reads one attribute of a route. False: it is malformed.
bool read_attribute(uint16_t type, std::span<const std::byte> value, size_t family_bytes, FoundRoute* route) {
  switch (type) {
    case RTA_PREFSRC:
    case RTA_GATEWAY:
      if (value.size() != family_bytes) return false;
      (type == RTA_PREFSRC ? route->source : route->gateway) = gid_of(value);
      return true;
    case RTA_VIA: {
      // A gateway of the other family (RFC 5549).
      if (value.size() < sizeof(rtvia)) return false;
      const auto family = front<__kernel_sa_family_t>(value);
      const auto address = value.subspan(offsetof(rtvia, rtvia_addr));
      if ((family != AF_INET && family != AF_INET6) || address.size() != address_bytes(family)) return false;
      route->gateway = gid_of(address);
      return true;
    }
    case RTA_OIF:
      if (value.size() != sizeof(uint32_t)) return false;
      route->interface_index = front<uint32_t>(value);
      return true;
    default:
      return true;
  }
}

/// Returns whether a route is local. Routes that reject packets (RTN_* of rtnetlink.h) return the error that the kernel
/// returns when it sends by them.
Result<bool> is_local(uint8_t type) {
  switch (type) {
    case RTN_LOCAL:
      return true;
    case RTN_UNICAST:
    case RTN_ANYCAST:
    case RTN_MULTICAST:
      return false;
    case RTN_BROADCAST:
      return fail(EACCES, "the address is a broadcast address");
    case RTN_BLACKHOLE:
      return fail(EINVAL, "the route has the type blackhole");
    case RTN_UNREACHABLE:
      return fail(EHOSTUNREACH, "the route has the type unreachable");
    case RTN_PROHIBIT:
      return fail(EACCES, "the route has the type prohibit");
    default:
      return fail(ENETUNREACH, "the route has an unsupported type");
  }
}

Result<FoundRoute> read_route(std::span<const std::byte> body) {
  constexpr const char* kMalformed = "the kernel returned a malformed route";
  if (body.size() < sizeof(rtmsg)) return fail(EBADMSG, kMalformed);
  const auto header = front<rtmsg>(body);
  if (header.rtm_family != AF_INET && header.rtm_family != AF_INET6) return fail(EBADMSG, kMalformed);
  FoundRoute route;
  auto rest = after(body, sizeof header);
  while (!rest.empty()) {
    if (rest.size() < sizeof(rtattr)) return fail(EBADMSG, kMalformed);
    const auto attribute = front<rtattr>(rest);
    if (attribute.rta_len < sizeof attribute || attribute.rta_len > rest.size()) return fail(EBADMSG, kMalformed);
    const auto value = rest.first(attribute.rta_len).subspan(RTA_LENGTH(0));
    if (!read_attribute(attribute.rta_type & NLA_TYPE_MASK, value, address_bytes(header.rtm_family), &route))
      return fail(EBADMSG, kMalformed);
    rest = after(rest, attribute.rta_len);
  }
  const auto local = is_local(header.rtm_type);
  if (!local) return tl::unexpected(local.error());
  route.local = *local;
  if (route.interface_index == 0) return fail(EBADMSG, "the kernel returned a route without an interface");
  return route;
}

const char* sentence_of(int error) {
  switch (error) {
    case ENETUNREACH:
      return "no route to the address";
    case EHOSTUNREACH:
      return "the address is unreachable";
    case EACCES:
      return "the route to the address is prohibited";
    case ENODEV:
      return "the interface does not exist or is down";
    default:
      return "the kernel rejected the route request";
  }
}

struct RouteRequest {
  nlmsghdr header{};
  rtmsg route{};
  std::byte attributes[2 * RTA_SPACE(kIpv6Bytes) + RTA_SPACE(sizeof(uint32_t))]{};

  RouteRequest(const UdpAddress& to, const Gid* from, uint32_t sequence) {
    const int family = family_of(to.address);
    header.nlmsg_len = offsetof(RouteRequest, attributes);
    header.nlmsg_type = RTM_GETROUTE;
    header.nlmsg_flags = NLM_F_REQUEST;
    header.nlmsg_seq = sequence;
    route.rtm_family = static_cast<unsigned char>(family);
    route.rtm_dst_len = static_cast<unsigned char>(address_bytes(family) * 8);
    add_address(RTA_DST, to.address);
    if (from != nullptr) {
      route.rtm_src_len = route.rtm_dst_len;
      add_address(RTA_SRC, *from);
    }
    if (to.scope != 0) add(RTA_OIF, &to.scope, sizeof to.scope);
  }

 private:
  void add_address(uint16_t type, const Gid& gid) {
    const size_t bytes = address_bytes(route.rtm_family);
    add(type, &gid.raw[kIpv6Bytes - bytes], bytes);
  }
  void add(uint16_t type, const void* value, size_t bytes) {
    std::byte* at = attributes + (header.nlmsg_len - offsetof(RouteRequest, attributes));
    const rtattr attribute{static_cast<uint16_t>(RTA_LENGTH(bytes)), type};
    std::memcpy(at, &attribute, sizeof attribute);
    std::memcpy(at + RTA_LENGTH(0), value, bytes);
    header.nlmsg_len += static_cast<uint32_t>(RTA_SPACE(bytes));
  }
};

Result<FoundRoute> ask(int fd, const UdpAddress& to, const Gid* from, uint32_t sequence) {
  const RouteRequest request(to, from, sequence);
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  ssize_t length;
  do {
    length =
        sendto(fd, &request, request.header.nlmsg_len, 0, reinterpret_cast<const sockaddr*>(&kernel), sizeof kernel);
  } while (length < 0 && errno == EINTR);
  if (length < 0) return base::fail_call(errno, "cannot send a route request to the kernel");
  std::byte reply[kMaxReply];
  const auto deadline = progress::Deadline::in_ns(kAnswerSeconds * progress::kNsPerSecond);
  for (int foreign = 0; foreign < kMaxForeign;) {
    if (const auto ready = progress::wait_readable(fd, deadline); !ready)
      return fail(ready.error().code(), "the kernel does not answer a route request");
    sockaddr_nl sender{};
    socklen_t sender_length = sizeof sender;
    length = recvfrom(fd, reply, sizeof reply, MSG_TRUNC | MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&sender),
                      &sender_length);
    if (length < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (length < 0) return base::fail_call(errno, "cannot receive the answer to a route request");
    if (static_cast<size_t>(length) > sizeof reply) return fail(EBADMSG, "the answer to a route request is too long");
    ++foreign;
    if (sender.nl_pid != 0) continue;
    const auto found = read_route_reply({reply, static_cast<size_t>(length)}, sequence);
    if (!found) return tl::unexpected(found.error());
    if (*found) return **found;
  }
  return fail(EBADMSG, "no answer of the kernel belongs to the route request");
}

}  // namespace

Result<std::optional<FoundRoute>> read_route_reply(std::span<const std::byte> reply, uint32_t sequence) {
  constexpr const char* kMalformed = "the kernel returned a malformed netlink message";
  while (!reply.empty()) {
    if (reply.size() < sizeof(nlmsghdr)) return fail(EBADMSG, kMalformed);
    const auto header = front<nlmsghdr>(reply);
    if (header.nlmsg_len < sizeof header || header.nlmsg_len > reply.size()) return fail(EBADMSG, kMalformed);
    const auto body = reply.first(header.nlmsg_len).subspan(NLMSG_HDRLEN);
    reply = after(reply, header.nlmsg_len);
    if (header.nlmsg_seq != sequence) continue;
    if (header.nlmsg_type == RTM_NEWROUTE) {
      const auto route = read_route(body);
      if (!route) return tl::unexpected(route.error());
      return *route;
    }
    if (header.nlmsg_type != NLMSG_ERROR) continue;
    if (body.size() < sizeof(int)) return fail(EBADMSG, kMalformed);
    const int error = front<int>(body);
    // Negative errno values; MAX_ERRNO of the kernel is 4095.
    if (error >= 0 || error < -4095) return fail(EBADMSG, kMalformed);
    return fail(-error, sentence_of(-error));
  }
  return std::nullopt;
}

Result<FoundRoute> find_route(const UdpAddress& to, const Gid* from) {
  UdpAddress target = to;
  if (from != nullptr && base::is_unspecified(*from)) from = nullptr;
  if (base::is_unspecified(to.address)) target.address = loopback_of(family_of(to.address));
  if (from != nullptr && family_of(*from) != family_of(target.address))
    return fail(EINVAL, "source ", base::gid_text(*from), " and destination ", base::gid_text(to.address),
                " have different address families");
  if (base::is_link_local(target.address) && target.scope == 0) {
    if (from != nullptr) target.scope = owner_of(*from, 0);
    if (target.scope == 0) return fail(EINVAL, base::gid_text(to.address), ": a link-local address needs an interface");
  }

  base::UniqueFd fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!fd) return base::fail_call(errno, "cannot open a netlink socket");
  if (from != nullptr) {
    // The kernel accepts any IPv6 source, so check it here. Several interfaces may have the same link-local address.
    const uint32_t scope = base::is_link_local(*from) ? target.scope : 0;
    const auto own = ask(fd.get(), {*from, 0, scope}, nullptr, 1);
    if (!own || !own->local)
      return fail(EADDRNOTAVAIL, "the source ", base::gid_text(*from), " is not an address of this host");
  }
  auto route = ask(fd.get(), target, from, 2);
  if (!route) return fail(route.error().code(), base::gid_text(to.address), ": ", route.error().what());
  if (from != nullptr) route->source = *from;
  if (base::is_unspecified(route->source))
    return fail(EADDRNOTAVAIL, "this host has no source address to reach ", base::gid_text(to.address));
  if (route->local) {
    const uint32_t owner = owner_of(target.address, target.scope);
    if (owner != 0) route->interface_index = owner;
  }
  return route;
}

}  // namespace nupa::net
