// SPDX-License-Identifier: Apache-2.0
#include "netdev/tun_device.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/system_error.h"
#include "netdev/virtio_header.h"
#include "progress/descriptors.h"

namespace nupa::netdev {
namespace {

/// Constants of linux/if_tun.h since 6.2. Older headers lack them.
constexpr unsigned kUso4 = 0x20;
constexpr unsigned kUso6 = 0x40;
constexpr int64_t kAnswerMs = 5'000;

ifreq request_for(const std::string& name) {
  ifreq request{};
  std::memcpy(request.ifr_name, name.data(), std::min(name.size(), sizeof request.ifr_name - 1));
  return request;
}

Result<base::UniqueFd> open_queue(const std::string& name, bool several, bool* takes_datagrams) {
  base::UniqueFd queue(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!queue)
    return fail(errno, "cannot open /dev/net/tun: ", std::strerror(errno),
                " (load the module tun, or give the container this device)");
  ifreq request = request_for(name);
  request.ifr_flags =
      static_cast<short>(IFF_TUN | IFF_NO_PI | IFF_VNET_HDR | (several ? IFF_MULTI_QUEUE : IFF_TUN_EXCL));
  if (ioctl(queue.get(), TUNSETIFF, &request) != 0) {
    if (errno == EPERM)
      return fail(EPERM, "creating an interface needs CAP_NET_ADMIN: run as root, or in `unshare -Urn`");
    if (errno == EBUSY) return fail(EBUSY, "an interface of this name already exists: ", name);
    return base::fail_call(errno, "cannot create interface ", name);
  }
  int header_bytes = sizeof(VirtioHeader), little_endian = 1;
  if (ioctl(queue.get(), TUNSETVNETHDRSZ, &header_bytes) != 0 || ioctl(queue.get(), TUNSETVNETLE, &little_endian) != 0)
    return base::fail_call(errno, "the kernel's tun driver does not support virtio headers of 12 bytes");
  constexpr unsigned kTcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
  *takes_datagrams = ioctl(queue.get(), TUNSETOFFLOAD, kTcp | kUso4 | kUso6) == 0;
  if (!*takes_datagrams && ioctl(queue.get(), TUNSETOFFLOAD, kTcp) != 0)
    return base::fail_call(errno, "the kernel's tun driver does not support segmentation offload");
  return queue;
}

/// Calls `use` with a socket for ioctls on interfaces.
template <class Use>
int with_socket(int family, Use&& use) {
  const base::UniqueFd socket(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return errno;
  return use(socket.get()) == 0 ? 0 : errno;
}

}  // namespace

Result<TunDevice> TunDevice::open(const std::string& name, uint32_t queues) {
  if (name.empty() || name.size() >= IFNAMSIZ || name.find_first_of("/% \t") != name.npos)
    return fail(EINVAL, "'", name, "': an interface's name has 1 to 15 characters, none of them '/', '%' or space");
  // With several queues the kernel would add this process to an existing interface of another program.
  if (if_nametoindex(name.c_str()) != 0) return fail(EBUSY, "an interface of this name already exists: ", name);
  TunDevice device(name);
  for (uint32_t i = 0; i < queues; ++i) {
    auto queue = open_queue(name, queues > 1, &device.takes_datagrams_);
    if (!queue) return tl::unexpected(queue.error());
    device.queues_.push_back(std::move(*queue));
  }
  return device;
}

int TunDevice::set_mtu(uint32_t mtu) const {
  ifreq request = request_for(name_);
  request.ifr_mtu = static_cast<int>(mtu);
  return with_socket(AF_INET, [&](int socket) { return ioctl(socket, SIOCSIFMTU, &request); });
}

int TunDevice::add_address(const Prefix& prefix) const {
  // Uses netlink (rtnetlink(7)), because SIOCSIFADDR replaces the previous IPv4 address.
  struct {
    nlmsghdr head;
    ifaddrmsg about;
    std::array<std::byte, 2 * RTA_SPACE(16)> attributes;
  } request{};
  const size_t length = prefix.is_ipv4() ? 4 : 16;
  request.about.ifa_family = prefix.is_ipv4() ? AF_INET : AF_INET6;
  request.about.ifa_prefixlen = prefix.length;
  request.about.ifa_index = if_nametoindex(name_.c_str());
  size_t used = 0;
  for (const uint16_t type : {IFA_LOCAL, IFA_ADDRESS}) {
    rtattr attribute{};
    attribute.rta_len = static_cast<uint16_t>(RTA_LENGTH(length));
    attribute.rta_type = type;
    std::byte* const place = request.attributes.data() + used;
    std::memcpy(place, &attribute, sizeof attribute);
    std::memcpy(place + RTA_LENGTH(0), &prefix.address.raw[16 - length], length);
    used += RTA_SPACE(length);
  }
  const size_t bytes = sizeof request - request.attributes.size() + used;
  request.head.nlmsg_len = static_cast<uint32_t>(bytes);
  request.head.nlmsg_type = RTM_NEWADDR;
  request.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
  const base::UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!socket || ::send(socket.get(), &request, bytes, 0) != static_cast<ssize_t>(bytes)) return errno;
  struct {
    nlmsghdr head;
    nlmsgerr what;
    std::array<std::byte, sizeof request + 256> more;  // a rejected request is repeated here, with a message
  } answer{};
  if (const auto ready = progress::wait_readable(socket.get(), progress::Deadline::in_ms(kAnswerMs)); !ready)
    return ready.error().code();
  if (::recv(socket.get(), &answer, sizeof answer, MSG_DONTWAIT) < 0) return errno;
  return answer.head.nlmsg_type == NLMSG_ERROR ? -answer.what.error : EPROTO;
}

void TunDevice::have_own_addresses_only(bool ipv6) const {
  const std::string folder = "/proc/sys/net/ipv6/conf/" + name_ + "/";
  constexpr int kNone = 1;  // IN6_ADDR_GEN_MODE_NONE
  std::ofstream(folder + "addr_gen_mode") << kNone;
  // If /proc is not writable, the other nodes drop packets from addresses that they do not have.
  if (!ipv6) std::ofstream(folder + "disable_ipv6") << 1;
}

int TunDevice::bring_up() const {
  ifreq request = request_for(name_);
  return with_socket(AF_INET, [&](int socket) {
    if (ioctl(socket, SIOCGIFFLAGS, &request) != 0) return -1;
    // TUN sets IFF_MULTICAST and IFF_NOARP, so groups and broadcasts are carried and no ARP requests are sent. It lets
    // nobody change IFF_BROADCAST and IFF_POINTOPOINT.
    request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
    return ioctl(socket, SIOCSIFFLAGS, &request);
  });
}

uint64_t TunDevice::dropped() const {
  // /sys shows the network namespace in which it was mounted, /proc/thread-self that of this thread.
  std::ifstream file("/proc/thread-self/net/dev");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    if (!std::getline(words >> std::ws, name, ':') || name != name_) continue;
    constexpr int kTransmitDrop = 11;  // after the eight numbers of received packets
    uint64_t count = 0;
    for (int i = 0; i <= kTransmitDrop; ++i) words >> count;
    return words ? count : 0;
  }
  return 0;
}

}  // namespace nupa::netdev
