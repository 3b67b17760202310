// SPDX-License-Identifier: Apache-2.0
/// Programs ask the kernel about RDMA devices by netlink (NETLINK_RDMA), and some print errors if there is no such
/// protocol. Where the kernel has none, a socket of this library stands for it, whose requests are answered from the
/// tree of files (rdma/rdma_netlink.h, the interface "nldev"). It supports what reads devices: bind(), a request by
/// send(), sendto() or sendmsg(), and any read.
#include <fcntl.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/next_function.h"

namespace {

template <class Function>
using Next = nupa::base::NextFunction<Function>;

constexpr size_t kMostSockets = 16;
constexpr uint32_t kMostDevices = 64;
constexpr size_t kMostRequest = 1024;
constexpr int kNumber = RDMA_NL_NLDEV;
constexpr uint16_t type_of(int command) { return static_cast<uint16_t>(RDMA_NL_GET_TYPE(kNumber, command)); }

/// A socket that stands for one of NETLINK_RDMA. Programs close it by close(), which this library does not see: then
/// its descriptor has another inode, or none.
struct StandIn {
  std::atomic<int> descriptor{-1};
  std::atomic<uint64_t> inode{0};
};
constinit StandIn g_sockets[kMostSockets];
/// Most processes never have one, and pay one load in each call below.
constinit std::atomic<bool> g_any{false};

uint64_t inode_of(int descriptor) {
  struct stat status;
  return fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
}

StandIn* find(int descriptor) {
  if (!g_any.load(std::memory_order_relaxed)) return nullptr;
  for (StandIn& each : g_sockets)
    if (each.descriptor.load() == descriptor && each.inode.load() == inode_of(descriptor)) return &each;
  return nullptr;
}

/// Null: all places are in use.
StandIn* take_place(int descriptor) {
  for (StandIn& each : g_sockets) {
    int before = each.descriptor.load();
    if (before != -1 && each.inode.load() == inode_of(before)) continue;
    if (!each.descriptor.compare_exchange_strong(before, descriptor)) continue;
    each.inode.store(inode_of(descriptor));
    g_any.store(true);
    return &each;
  }
  return nullptr;
}

/// One netlink message. Content that does not fit is left out, and then it is not sent.
class Message {
 public:
  Message(const nlmsghdr& request, uint16_t type, uint16_t flags) {
    header_.nlmsg_len = sizeof header_;
    header_.nlmsg_type = type;
    header_.nlmsg_flags = flags;
    header_.nlmsg_seq = request.nlmsg_seq;
    header_.nlmsg_pid = static_cast<uint32_t>(getpid());
  }
  void put(const void* from, size_t bytes) {
    if (bytes > sizeof body_ - used()) {
      is_whole_ = false;
      return;
    }
    std::memcpy(body_ + used(), from, bytes);
    header_.nlmsg_len += static_cast<uint32_t>(NLMSG_ALIGN(bytes));
  }
  void put_attribute(uint16_t type, const void* from, size_t bytes) {
    const nlattr attribute{static_cast<uint16_t>(NLA_HDRLEN + bytes), type};
    put(&attribute, sizeof attribute);
    put(from, bytes);
  }
  template <class Number>
  void put_number(uint16_t type, Number number) {
    put_attribute(type, &number, sizeof number);
  }
  void put_text(uint16_t type, const char* text) { put_attribute(type, text, std::strlen(text) + 1); }
  bool send(int to) const {
    const iovec parts[] = {{const_cast<nlmsghdr*>(&header_), sizeof header_}, {const_cast<char*>(body_), used()}};
    return is_whole_ && writev(to, parts, 2) == static_cast<ssize_t>(header_.nlmsg_len);
  }

 private:
  size_t used() const { return header_.nlmsg_len - sizeof header_; }

  nlmsghdr header_{};
  char body_[1024]{};
  bool is_whole_ = true;
};

/// Reads the first line of a file of the tree. Returns false if there is none.
bool read_line(const char* path, char* line, size_t size) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t bytes = read(file, line, size - 1);
  close(file);
  if (bytes <= 0) return false;
  line[bytes] = '\0';
  line[std::strcspn(line, "\n")] = '\0';
  return true;
}

/// A GUID as sysfs writes it: four groups of four hexadecimal digits.
uint64_t guid_of(const char* text) {
  uint64_t guid = 0;
  for (; *text != '\0'; ++text) {
    const char digit[] = {*text, '\0'};
    if (*text != ':') guid = guid << 4 | (std::strtoul(digit, nullptr, 16) & 15);
  }
  return guid;
}

bool name_of(uint32_t index, char* name, size_t size) {
  char path[64];
  std::snprintf(path, sizeof path, "/sys/class/infiniband_verbs/uverbs%u/ibdev", index);
  return read_line(path, name, size);
}

/// Returns false if there is no device of that index.
bool send_device(int to, const nlmsghdr& request, uint32_t index, uint16_t flags) {
  char name[64];
  if (!name_of(index, name, sizeof name)) return false;
  Message message(request, type_of(RDMA_NLDEV_CMD_GET), flags);
  message.put_number(RDMA_NLDEV_ATTR_DEV_INDEX, index);
  message.put_text(RDMA_NLDEV_ATTR_DEV_NAME, name);
  message.put_number(RDMA_NLDEV_ATTR_PORT_INDEX, uint32_t{1});  // the number of its ports
  const auto look = [&](const char* file, auto&& put) {
    char path[160], text[64];
    std::snprintf(path, sizeof path, "/sys/class/infiniband/%s/%s", name, file);
    if (read_line(path, text, sizeof text)) put(text);
  };
  look("fw_ver", [&](const char* text) { message.put_text(RDMA_NLDEV_ATTR_FW_VERSION, text); });
  look("node_guid", [&](const char* text) { message.put_number(RDMA_NLDEV_ATTR_NODE_GUID, guid_of(text)); });
  look("sys_image_guid", [&](const char* text) { message.put_number(RDMA_NLDEV_ATTR_SYS_IMAGE_GUID, guid_of(text)); });
  message.put_number(RDMA_NLDEV_ATTR_DEV_NODE_TYPE, uint8_t{RDMA_NODE_IB_CA});
  message.send(to);
  return true;
}

void send_error(int to, const nlmsghdr& request, int error) {
  Message message(request, NLMSG_ERROR, 0);
  const nlmsgerr body{-error, request};
  message.put(&body, sizeof body);
  message.send(to);
}

/// The index that a request names; kMostDevices: it names none.
uint32_t index_in(const char* attributes, size_t bytes) {
  for (size_t at = 0; at + NLA_HDRLEN <= bytes;) {
    nlattr attribute;
    std::memcpy(&attribute, attributes + at, sizeof attribute);
    if (attribute.nla_len < NLA_HDRLEN || attribute.nla_len > bytes - at) break;
    uint32_t index;
    if (attribute.nla_type == RDMA_NLDEV_ATTR_DEV_INDEX && attribute.nla_len == NLA_HDRLEN + sizeof index) {
      std::memcpy(&index, attributes + at + NLA_HDRLEN, sizeof index);
      return index;
    }
    at += NLA_ALIGN(attribute.nla_len);
  }
  return kMostDevices;
}

/// Writes the answers to a request as the kernel does.
void answer(int to, const nlmsghdr& request, const char* attributes, size_t bytes) {
  const bool dumps = (request.nlmsg_flags & NLM_F_DUMP) == NLM_F_DUMP;
  int error = 0;
  if (request.nlmsg_type == type_of(RDMA_NLDEV_CMD_GET) && dumps) {
    for (uint32_t index = 0; index < kMostDevices; ++index) send_device(to, request, index, NLM_F_MULTI);
    Message done(request, NLMSG_DONE, NLM_F_MULTI);
    done.put(&error, sizeof error);
    done.send(to);
    return;
  }
  if (request.nlmsg_type == type_of(RDMA_NLDEV_CMD_GET)) {
    const uint32_t index = index_in(attributes, bytes);
    error = index == kMostDevices ? EINVAL : send_device(to, request, index, 0) ? 0 : ENODEV;
  } else if (request.nlmsg_type == type_of(RDMA_NLDEV_CMD_SYS_GET)) {
    Message message(request, type_of(RDMA_NLDEV_CMD_SYS_GET), 0);
    message.put_number(RDMA_NLDEV_SYS_ATTR_NETNS_MODE, uint8_t{1});  // all namespaces have the devices
    message.put_number(RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK, uint8_t{1});
    message.send(to);
  } else {
    error = EOPNOTSUPP;
  }
  if (error != 0 || (request.nlmsg_flags & NLM_F_ACK) != 0) send_error(to, request, error);
}

/// Puts a socket in the descriptor's place from which the answers can be read, so that nothing of it stays open when
/// the program closes it. Returns the length of the request, or -1 and errno.
ssize_t take_request(StandIn& stand_in, int descriptor, const iovec* parts, size_t count) {
  char request[kMostRequest];
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    if (parts[i].iov_len > sizeof request - bytes) {
      errno = EMSGSIZE;
      return -1;
    }
    if (parts[i].iov_len > 0) std::memcpy(request + bytes, parts[i].iov_base, parts[i].iov_len);
    bytes += parts[i].iov_len;
  }
  nlmsghdr header;
  if (bytes < sizeof header) return static_cast<ssize_t>(bytes);  // the kernel ignores it
  std::memcpy(&header, request, sizeof header);
  const int closes = fcntl(descriptor, F_GETFD) & FD_CLOEXEC, waits = fcntl(descriptor, F_GETFL) & O_NONBLOCK;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | (waits != 0 ? SOCK_NONBLOCK : 0), 0, ends) != 0) return -1;
  answer(ends[1], header, request + NLMSG_HDRLEN, bytes - sizeof header);
  close(ends[1]);
  stand_in.inode.store(inode_of(ends[0]));
  dup3(ends[0], descriptor, closes != 0 ? O_CLOEXEC : 0);
  close(ends[0]);
  return static_cast<ssize_t>(bytes);
}

/// Returns a descriptor, or -1 and errno.
int stand_in_for(int type) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_DGRAM | (type & (SOCK_CLOEXEC | SOCK_NONBLOCK)), 0, ends) != 0) return -1;
  close(ends[1]);
  if (take_place(ends[0]) != nullptr) return ends[0];
  close(ends[0]);
  errno = EPROTONOSUPPORT;
  return -1;
}

}  // namespace

NUPA_SHOWN int socket(int family, int type, int protocol) noexcept {
  static constinit Next<int(int, int, int)> next("socket");
  const int made = next(family, type, protocol);
  if (family != AF_NETLINK || protocol != NETLINK_RDMA || made >= 0 || errno != EPROTONOSUPPORT) return made;
  char name[64];
  if (name_of(0, name, sizeof name)) return stand_in_for(type);
  errno = EPROTONOSUPPORT;
  return -1;
}

NUPA_SHOWN int bind(int descriptor, const sockaddr* address, socklen_t length) noexcept {
  static constinit Next<int(int, const sockaddr*, socklen_t)> next("bind");
  return find(descriptor) != nullptr ? 0 : next(descriptor, address, length);
}

NUPA_SHOWN ssize_t send(int descriptor, const void* data, size_t length, int flags) {
  static constinit Next<ssize_t(int, const void*, size_t, int)> next("send");
  StandIn* const stand_in = find(descriptor);
  if (stand_in == nullptr) return next(descriptor, data, length, flags);
  const iovec part{const_cast<void*>(data), length};
  return take_request(*stand_in, descriptor, &part, 1);
}

NUPA_SHOWN ssize_t sendto(int descriptor, const void* data, size_t length, int flags, const sockaddr* to,
                          socklen_t to_length) {
  static constinit Next<ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t)> next("sendto");
  StandIn* const stand_in = find(descriptor);
  if (stand_in == nullptr) return next(descriptor, data, length, flags, to, to_length);
  const iovec part{const_cast<void*>(data), length};
  return take_request(*stand_in, descriptor, &part, 1);
}

NUPA_SHOWN ssize_t sendmsg(int descriptor, const msghdr* message, int flags) {
  static constinit Next<ssize_t(int, const msghdr*, int)> next("sendmsg");
  StandIn* const stand_in = find(descriptor);
  if (stand_in == nullptr) return next(descriptor, message, flags);
  return take_request(*stand_in, descriptor, message->msg_iov, message->msg_iovlen);
}
