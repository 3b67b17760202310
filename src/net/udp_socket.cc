// SPDX-License-Identifier: Apache-2.0
#include "net/udp_socket.h"

#include <linux/net_tstamp.h>
#include <linux/errqueue.h>
#include <netinet/udp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "base/gid.h"
#include "base/gid_text.h"
#include "base/log.h"
#include "base/memory_fault.h"
#include "base/system_error.h"

namespace nupa::net {
namespace {

// <netinet/udp.h> of some distributions lacks them.
constexpr int kUdpSegment = 103;     // UDP_SEGMENT, Linux 4.18
constexpr int kUdpGro = 104;         // UDP_GRO, Linux 5.0
constexpr int kUdpNoCheck6Rx = 102;  // UDP_NO_CHECK6_RX, Linux 3.16
// From <linux/in6.h>, which cannot be included together with <netinet/in.h>.
constexpr int kIpv6FlowInfo = 11;      // IPV6_FLOWINFO
constexpr int kIpv6MulticastAll = 29;  // IPV6_MULTICAST_ALL, Linux 4.20
constexpr uint32_t kFlowLabelMask = 0xfffff;
constexpr uint8_t kEct0 = 2;  // RFC 3168: the transport reacts to congestion marks
constexpr uint8_t kCongestionExperienced = 3;
constexpr uint8_t kEcnMask = 3;
constexpr int kType = SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

bool set(int fd, int level, int name, int value) { return setsockopt(fd, level, name, &value, sizeof value) == 0; }

/// Room for the control messages of one datagram.
struct alignas(cmsghdr) Control {
  char bytes[CMSG_SPACE(sizeof(in6_pktinfo)) + CMSG_SPACE(sizeof(in_pktinfo)) + 4 * CMSG_SPACE(sizeof(int))];
};

// System calls and not libc's functions: in a process with several threads those are cancellation points with a cost,
// and pollers call them all the time. ThreadSanitizer needs libc's functions to see that a send happens before its
// receive.
#if defined(__SANITIZE_THREAD__)
ssize_t receive_message(int fd, msghdr* message, int flags) { return recvmsg(fd, message, flags); }
ssize_t send_message(int fd, const msghdr* message, int flags) { return sendmsg(fd, message, flags); }
#else
ssize_t receive_message(int fd, msghdr* message, int flags) { return syscall(SYS_recvmsg, fd, message, flags); }
ssize_t send_message(int fd, const msghdr* message, int flags) { return syscall(SYS_sendmsg, fd, message, flags); }
#endif

template <class T>
void append(msghdr& message, int level, int type, const T& value) {
  auto* header = reinterpret_cast<cmsghdr*>(static_cast<char*>(message.msg_control) + message.msg_controllen);
  header->cmsg_level = level;
  header->cmsg_type = type;
  header->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(header), &value, sizeof value);
  message.msg_controllen += CMSG_SPACE(sizeof value);
}

void append_fields(msghdr& message, const IpFields& fields, bool ipv4) {
  if ((fields.traffic_class & ~kEcnMask) != 0) {
    const int service = (fields.traffic_class & ~kEcnMask) | kEct0;
    if (ipv4)
      append(message, IPPROTO_IP, IP_TOS, service);
    else
      append(message, IPPROTO_IPV6, IPV6_TCLASS, service);
  }
  if (fields.hop_limit != 0) {
    const int hops = fields.hop_limit;
    if (ipv4)
      append(message, IPPROTO_IP, IP_TTL, hops);
    else
      append(message, IPPROTO_IPV6, IPV6_HOPLIMIT, hops);
  }
  // The flow label is last, because flush() may remove it again.
  if (fields.flow_label != 0 && !ipv4)
    append(message, IPPROTO_IPV6, kIpv6FlowInfo, htonl(fields.flow_label & kFlowLabelMask));
}

template <class T>
T value_of(const cmsghdr* header) {
  T value;
  std::memcpy(&value, CMSG_DATA(header), sizeof value);
  return value;
}

sockaddr_in6 sockaddr_of(const UdpAddress& address) {
  sockaddr_in6 made{};
  made.sin6_family = AF_INET6;
  made.sin6_port = htons(address.port);
  made.sin6_scope_id = address.scope;
  std::memcpy(&made.sin6_addr, address.address.raw.data(), 16);
  return made;
}

/// For a socket that has IPv4 only.
sockaddr_in plain_of(const sockaddr_in6& mapped) {
  sockaddr_in made{};
  made.sin_family = AF_INET;
  made.sin_port = mapped.sin6_port;
  std::memcpy(&made.sin_addr, &mapped.sin6_addr.s6_addr[12], 4);
  return made;
}

/// The error that a host or the kernel reports for a message. 0: no error, because the message is a copy.
uint32_t error_of(msghdr& message) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    const bool tells = (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_RECVERR) ||
                       (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_RECVERR);
    if (!tells) continue;
    sock_extended_err error;
    std::memcpy(&error, CMSG_DATA(header), sizeof error);
    return error.ee_origin == SO_EE_ORIGIN_TIMESTAMPING ? 0 : error.ee_errno;
  }
  return 0;
}

/// Calls `take` with each copy of a message that the kernel has kept for this socket.
template <class Take>
void take_copies(int fd, Take&& take) {
  for (;;) {
    std::array<uint8_t, 128> copy;
    alignas(cmsghdr) std::array<char, 256> control;
    iovec part{copy.data(), copy.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t length = recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT);
    if (length < 0) return;
    if (error_of(message) == 0) take(copy.data(), static_cast<size_t>(length));
  }
}

/// `gid` all zeros: any address of this host. `zone`: the interface of an address that has one.
int bind_to(int fd, const Gid& gid, bool ipv6, uint16_t port, uint32_t zone = 0) {
  if (ipv6) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    address.sin6_scope_id = zone;
    std::memcpy(&address.sin6_addr, gid.raw.data(), 16);
    return bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  std::memcpy(&address.sin_addr, &gid.raw[12], 4);
  return bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

/// Joins a multicast group on an interface.
bool join(int fd, const Gid& group, const GidEntry& at) {
  if (!base::is_ipv4(group)) {
    ipv6_mreq wanted{};
    std::memcpy(&wanted.ipv6mr_multiaddr, group.raw.data(), 16);
    wanted.ipv6mr_interface = at.interface_index;
    return setsockopt(fd, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, &wanted, sizeof wanted) == 0;
  }
  ip_mreqn wanted{};
  std::memcpy(&wanted.imr_multiaddr, &group.raw[12], 4);
  std::memcpy(&wanted.imr_address, &at.gid.raw[12], 4);
  wanted.imr_ifindex = static_cast<int>(at.interface_index);
  return setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &wanted, sizeof wanted) == 0;
}

/// `name` may be of either family.
UdpAddress address_in(const sockaddr_in6& name) {
  if (name.sin6_family == AF_INET6) {
    UdpAddress address;
    std::memcpy(address.address.raw.data(), &name.sin6_addr, 16);
    address.port = ntohs(name.sin6_port);
    address.scope = name.sin6_scope_id;
    return address;
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&name);
  return {base::ipv4_gid(v4->sin_addr), ntohs(v4->sin_port), 0};
}

}  // namespace

Result<UdpSocket> UdpSocket::configure(base::UniqueFd fd, uint16_t port, bool dual, uint32_t buffer_bytes) {
  const int wanted = static_cast<int>(buffer_bytes);
  if (!set(fd.get(), SOL_SOCKET, SO_RCVBUFFORCE, wanted)) set(fd.get(), SOL_SOCKET, SO_RCVBUF, wanted);
  if (!set(fd.get(), SOL_SOCKET, SO_SNDBUFFORCE, wanted)) set(fd.get(), SOL_SOCKET, SO_SNDBUF, wanted);
  int granted = 0;
  socklen_t length = sizeof granted;
  getsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &granted, &length);
  // Datagrams of groups that only other sockets of this host have joined are not for this one.
  set(fd.get(), IPPROTO_IP, IP_MULTICAST_ALL, 0);
  set(fd.get(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  set(fd.get(), IPPROTO_IP, IP_RECVTOS, 1);
  set(fd.get(), IPPROTO_IP, IP_TOS, kEct0);
  if (dual) {
    set(fd.get(), IPPROTO_IPV6, kIpv6MulticastAll, 0);
    set(fd.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
    set(fd.get(), IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
    set(fd.get(), IPPROTO_IPV6, IPV6_TCLASS, kEct0);
    // Standard peers send no UDP checksum, which IPv6 would drop: the invariant CRC covers the same (RFC 6936).
    set(fd.get(), IPPROTO_UDP, kUdpNoCheck6Rx, 1);
  }
  if (!set(fd.get(), IPPROTO_UDP, kUdpGro, 1)) NUPA_INFO("UDP GRO is not available; large messages will be slower");
  return UdpSocket(std::move(fd), port, dual, static_cast<uint32_t>(granted));
}

Result<UdpSocket> UdpSocket::open(uint16_t port, uint32_t buffer_bytes) {
  base::UniqueFd fd(socket(AF_INET6, kType, 0));
  const bool dual = static_cast<bool>(fd);
  if (!fd) fd.reset(socket(AF_INET, kType, 0));
  if (!fd) return base::fail_call(errno, "cannot create a UDP socket");
  if (dual) set(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind_to(fd.get(), {}, dual, port) != 0) return base::fail_call(errno, "cannot bind UDP port ", port);
  if (port == 0) {
    sockaddr_in6 bound{};  // the port is in the same place for both families
    socklen_t bytes = sizeof bound;
    if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &bytes) != 0)
      return base::fail_call(errno, "cannot read the port of a UDP socket");
    port = ntohs(bound.sin6_port);
  }
  // Set only after bind(), so that no other socket has the port: only sockets of groups may join it from now on.
  set(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1);
  auto opened = configure(std::move(fd), port, dual, buffer_bytes);
  if (opened) opened->report_addresses();
  return opened;
}

Result<UdpSocket> UdpSocket::open_group(const Gid& group, uint16_t port, const std::vector<GidEntry>& at,
                                        uint32_t buffer_bytes) {
  const bool ipv6 = !base::is_ipv4(group);
  base::UniqueFd fd(socket(ipv6 ? AF_INET6 : AF_INET, kType, 0));
  if (!fd) return base::fail_call(errno, "cannot create a UDP socket");
  set(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1);
  const uint32_t zone = is_of_one_link(group) && !at.empty() ? at.front().interface_index : 0;
  if (bind_to(fd.get(), group, ipv6, port, zone) != 0)
    return base::fail_call(errno, "cannot bind UDP port ", port, " of multicast group ", base::gid_text(group));
  int error = EADDRNOTAVAIL;
  bool joined = false;
  for (const GidEntry& entry : at) {
    if (base::is_ipv4(entry.gid) == ipv6) continue;
    if (join(fd.get(), group, entry) || errno == EADDRINUSE)  // two addresses of one interface
      joined = true;
    else
      error = errno;
  }
  if (!joined) return base::fail_call(error, "no interface can join multicast group ", base::gid_text(group));
  auto socket = configure(std::move(fd), port, ipv6, buffer_bytes);
  if (socket) {
    socket->report_addresses();
    socket->report_more();
  }
  return socket;
}

Result<UdpSocket> UdpSocket::open_address(const Gid& address, uint16_t port, uint32_t buffer_bytes) {
  const bool ipv6 = !base::is_ipv4(address);
  base::UniqueFd fd(socket(ipv6 ? AF_INET6 : AF_INET, kType, 0));
  if (!fd) return base::fail_call(errno, "cannot create a UDP socket");
  set(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1);
  auto opened = configure(std::move(fd), port, ipv6, buffer_bytes);
  if (!opened) return opened;
  opened->has_address_ = true;
  opened->address_ = address;
  if (bind_to(opened->fd(), address, ipv6, port) != 0)
    return base::fail_call(errno, "cannot bind another UDP socket to ", base::gid_text(address), " port ", port);
  return opened;
}

Result<void> UdpSocket::lead_to(const UdpAddress& peer) {
  sockaddr_in6 to = sockaddr_of(peer);
  sockaddr_in plain = plain_of(to);
  const int error = dual_ ? connect(fd(), reinterpret_cast<const sockaddr*>(&to), sizeof to)
                          : connect(fd(), reinterpret_cast<const sockaddr*>(&plain), sizeof plain);
  if (error != 0) return base::fail_call(errno, "cannot connect a UDP socket to ", base::gid_text(peer.address));
  if (!leads_somewhere_) leads_somewhere_ = true;  // senders read it, so write it only once
  return {};
}

Result<uint16_t> UdpSocket::learn_identification() const {
  // When a message reaches its interface, the kernel returns a copy of it with its headers to a socket that wants
  // timestamps.
  const uint32_t wanted = SOF_TIMESTAMPING_TX_SCHED | SOF_TIMESTAMPING_SOFTWARE;
  const uint32_t nothing = 0;
  if (setsockopt(fd(), SOL_SOCKET, SO_TIMESTAMPING, &wanted, sizeof wanted) != 0)
    return fail(ENOTSUP, "the kernel does not support SO_TIMESTAMPING for UDP sockets");
  // The error of an earlier message is reported first, once.
  for (int tries = 0; tries < 2 && send(fd(), nullptr, 0, MSG_DONTWAIT | MSG_NOSIGNAL) < 0; ++tries) {
  }
  setsockopt(fd(), SOL_SOCKET, SO_TIMESTAMPING, &nothing, sizeof nothing);
  std::optional<uint16_t> found;
  take_copies(fd(), [&](const uint8_t* copy, size_t length) {
    constexpr size_t kHeaders = 20 + 8;  // IPv4 and UDP, behind the headers of the link
    constexpr uint8_t kVersionAndLength = 0x45;
    if (length < kHeaders) return;
    const uint8_t* ip = copy + length - kHeaders;
    if (ip[0] == kVersionAndLength && ip[9] == IPPROTO_UDP) found = static_cast<uint16_t>((ip[4] << 8 | ip[5]) + 1);
  });
  if (!found) return fail(ENOTSUP, "the kernel does not return the headers of sent UDP datagrams");
  return *found;
}

void UdpSocket::report_addresses() const {
  if (dual_)
    set(fd_.get(), IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);  // for both families
  else
    set(fd_.get(), IPPROTO_IP, IP_PKTINFO, 1);
}

void UdpSocket::report_more() const {
  set(fd_.get(), IPPROTO_IP, IP_RECVTTL, 1);
  if (!dual_) return;
  set(fd_.get(), IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1);
  set(fd_.get(), IPPROTO_IPV6, kIpv6FlowInfo, 1);
}

void UdpSocket::report_refusals() {
  set(fd_.get(), IPPROTO_IP, IP_RECVERR, 1);
  if (dual_) set(fd_.get(), IPPROTO_IPV6, IPV6_RECVERR, 1);
  reports_refusals_ = true;
}

bool UdpSocket::next_refusal(Refusal* refusal) const {
  for (;;) {
    sockaddr_in6 to{};
    alignas(cmsghdr) char control[512];
    iovec part{refusal->quoted.data(), refusal->quoted.size()};
    msghdr message{};
    message.msg_name = &to;
    message.msg_namelen = sizeof to;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t length = receive_message(fd_.get(), &message, MSG_DONTWAIT | MSG_ERRQUEUE);
    if (length < 0) return false;
    if (error_of(message) != ECONNREFUSED) continue;
    refusal->to = address_in(to);
    refusal->quoted_length = static_cast<uint32_t>(length);
    return true;
  }
}

void UdpSocket::set_group_loop(bool loop) const {
  set(fd_.get(), IPPROTO_IP, IP_MULTICAST_LOOP, loop);
  if (dual_) set(fd_.get(), IPPROTO_IPV6, IPV6_MULTICAST_LOOP, loop);
}

bool UdpSocket::receive(std::byte* buffer, uint32_t capacity, Received* received) const {
  sockaddr_in6 from{};
  iovec part{buffer, capacity};
  Control control;
  msghdr message{};
  message.msg_name = &from;
  message.msg_namelen = sizeof from;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  const ssize_t length = receive_message(fd_.get(), &message, MSG_DONTWAIT);
  if (length <= 0) return false;
  received->length = static_cast<uint32_t>(length);
  received->segment = received->length;
  received->flow_label = 0;
  received->hop_limit = 0;
  if (has_address_) received->to = address_;
  received->congested = false;
  received->from = address_in(from);
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == IPPROTO_UDP && header->cmsg_type == kUdpGro) {
      received->segment = static_cast<uint32_t>(value_of<int>(header));
    } else if (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_PKTINFO) {
      const auto info = value_of<in6_pktinfo>(header);
      std::memcpy(received->to.raw.data(), &info.ipi6_addr, 16);
    } else if (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_PKTINFO) {
      received->to = base::ipv4_gid(value_of<in_pktinfo>(header).ipi_addr);
    } else if ((header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_TOS) ||
               (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_TCLASS)) {
      const uint8_t service = *CMSG_DATA(header);
      received->congested = (service & kEcnMask) == kCongestionExperienced;
      received->traffic_class = service;
    } else if ((header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_TTL) ||
               (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_HOPLIMIT)) {
      received->hop_limit = static_cast<uint8_t>(value_of<int>(header));
    } else if (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == kIpv6FlowInfo) {
      received->flow_label = ntohl(value_of<uint32_t>(header)) & kFlowLabelMask;
    }
  }
  if (received->segment == 0) received->segment = received->length;
  return true;
}

bool UdpBatch::joins(uint64_t place, uint32_t length) const {
  if (messages_ == 0) return false;
  const Message& open = list_[messages_ - 1];
  // All datagrams of a message have the same length, except the last.
  return open.place == place && open.last == open.segment && length <= open.segment && open.count < kMaxSegments &&
         open.bytes + length <= kMaxBytes;
}

uint32_t UdpBatch::next_position(uint64_t place, uint32_t length) const {
  return joins(place, length) ? list_[messages_ - 1].count : 0;
}

bool UdpBatch::has_room(uint32_t parts) const { return messages_ < kMaxMessages && part_count_ + parts <= kMaxParts; }

void UdpBatch::begin(uint64_t place, const UdpAddress& to, const Gid& from, uint32_t from_interface,
                     const IpFields& fields, uint32_t length) {
  if (joins(place, length)) {
    Message& open = list_[messages_ - 1];
    ++open.count;
    open.bytes += length;
    open.last = length;
    return;
  }
  Message& message = list_[messages_++];
  message.place = place;
  message.segment = message.last = message.bytes = length;
  message.count = 1;
  message.first_part = part_count_;
  message.parts = 0;
  message.fields = fields;
  message.from = from;
  message.from_interface = from_interface;
  message.to = sockaddr_of(to);
}

void UdpBatch::add(const void* data, uint32_t length) {
  if (length == 0) return;
  Message& message = list_[messages_ - 1];
  if (message.parts > 0) {
    iovec& before = parts_[part_count_ - 1];
    if (static_cast<const std::byte*>(before.iov_base) + before.iov_len == data) {
      before.iov_len += length;
      return;
    }
  }
  parts_[part_count_++] = {const_cast<void*>(data), length};
  ++message.parts;
}

void UdpBatch::put_back(const Message& message, std::byte* bytes) {
  Message& mine = list_[messages_++];
  mine = message;
  mine.first_part = part_count_;
  mine.parts = 1;
  parts_[part_count_++] = {bytes, message.bytes};
}

uint32_t UdpBatch::send_from(uint32_t first, const UdpSocket& socket, uint32_t* lost, int* error) {
  mmsghdr headers[kMaxMessages];
  Control controls[kMaxMessages];
  sockaddr_in plain[kMaxMessages];
  for (uint32_t i = first; i < messages_; ++i) {
    Message& from = list_[i];
    msghdr& header = headers[i].msg_hdr;
    header = {};
    header.msg_iov = &parts_[from.first_part];
    header.msg_iovlen = from.parts;
    header.msg_control = controls[i].bytes;
    if (socket.leads_somewhere()) {
      // The socket is connected.
    } else if (socket.is_dual()) {
      header.msg_name = &from.to;
      header.msg_namelen = sizeof from.to;
    } else {
      plain[i] = plain_of(from.to);
      header.msg_name = &plain[i];
      header.msg_namelen = sizeof plain[i];
    }
    if (socket.is_dual() && !socket.has_address()) {
      in6_pktinfo info{};
      std::memcpy(&info.ipi6_addr, from.from.raw.data(), 16);
      info.ipi6_ifindex = from.from_interface;
      append(header, IPPROTO_IPV6, IPV6_PKTINFO, info);
    } else if (!socket.has_address()) {
      in_pktinfo info{};
      info.ipi_ifindex = static_cast<int>(from.from_interface);
      std::memcpy(&info.ipi_spec_dst, &from.from.raw[12], 4);
      append(header, IPPROTO_IP, IP_PKTINFO, info);
    }
    if (from.count > 1) append(header, IPPROTO_UDP, kUdpSegment, static_cast<uint16_t>(from.segment));
    append_fields(header, from.fields, base::is_ipv4(from.from));
    if (header.msg_controllen == 0) header.msg_control = nullptr;
  }
  bool told = !socket.reports_of_others();
  for (uint32_t done = first; done < messages_;) {
    constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
    int sent = 1;
    if (messages_ - done > 1)
      sent = sendmmsg(socket.fd(), headers + done, messages_ - done, kFlags);
    else if (send_message(socket.fd(), &headers[done].msg_hdr, kFlags) < 0)
      sent = -1;
    if (sent > 0) {
      done += static_cast<uint32_t>(sent);
      continue;
    }
    if (errno == EINTR) continue;
    *error = errno;
    // The socket's send buffer or the interface's queue is full.
    if (errno == EAGAIN || errno == ENOBUFS) return done;
    // The error of an earlier message, not of this one.
    if (!std::exchange(told, true)) continue;
    if (uint32_t& label = list_[done].fields.flow_label;
        errno == EINVAL && label != 0 && !base::is_ipv4(list_[done].from)) {
      // A program of this host has reserved a flow label, so all others need a lease for theirs (man 7 ipv6).
      headers[done].msg_hdr.msg_controllen -= CMSG_SPACE(sizeof label);
      label = 0;
      continue;
    }
    // This message cannot be sent; those behind it may.
    ++*lost;
    ++done;
  }
  return messages_;
}

uint32_t UdpBatch::flush(const UdpSocket& socket, int* error, UdpBacklog* backlog) {
  uint32_t lost = 0;
  uint32_t next = 0;
  if (backlog == nullptr || backlog->empty()) next = send_from(0, socket, &lost, error);
  for (; next < messages_; ++next)
    if (backlog == nullptr || !backlog->keep(list_[next], &parts_[list_[next].first_part])) ++lost;
  clear();
  return lost;
}

bool UdpBacklog::keep(const UdpBatch::Message& message, const iovec* parts) try {
  std::lock_guard lock(mutex_);
  if (bytes_ + message.bytes > kMostBytes) return false;
  if (batch_ == nullptr) batch_ = std::make_unique<UdpBatch>();
  Kept kept{message, std::make_unique_for_overwrite<std::byte[]>(message.bytes)};
  std::byte* to = kept.bytes.get();
  for (uint32_t i = 0; i < message.parts; ++i) {
    const auto* const from = static_cast<const std::byte*>(parts[i].iov_base);
    // A part may be in the program's memory, which may be unmapped.
    if (!base::try_access(from, parts[i].iov_len, [&] { std::memcpy(to, from, parts[i].iov_len); })) return false;
    to += parts[i].iov_len;
  }
  kept_.push_back(std::move(kept));
  bytes_ += message.bytes;
  waiting_.store(static_cast<uint32_t>(kept_.size()), std::memory_order_seq_cst);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

bool UdpBacklog::flush(const UdpSocket& socket, uint32_t* lost, int* error) {
  std::lock_guard lock(mutex_);
  bool some = false;
  while (!kept_.empty()) {
    for (const Kept& kept : kept_) {
      if (!batch_->has_room(1)) break;
      batch_->put_back(kept.message, kept.bytes.get());
    }
    const bool all = batch_->messages() == kept_.size();
    const uint32_t gone = batch_->send_from(0, socket, lost, error);
    const bool is_full = gone != batch_->messages();
    batch_->clear();
    for (uint32_t i = 0; i < gone; ++i) {
      bytes_ -= kept_.front().message.bytes;
      kept_.pop_front();
    }
    some = some || gone != 0;
    waiting_.store(static_cast<uint32_t>(kept_.size()), std::memory_order_seq_cst);
    if (is_full || all) break;
  }
  return some;
}

}  // namespace nupa::net
