// SPDX-License-Identifier: Apache-2.0
#include "cm/mad_name.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/system_error.h"

namespace nupa::cm {
namespace {

constexpr uint64_t kRelayMagic = 0x3159414c4552554eull;

/// The contents of a datagram. Both processes are on one machine, so no byte order is converted.
struct RelayMessage {
  uint64_t magic;
  Gid local;
  Gid remote;
  uint32_t interface;
  uint16_t port;
  uint16_t of_nupa;
  Mad mad;
};
static_assert(sizeof(RelayMessage) == 8 + 32 + 8 + 256);

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
};
Address address_of(const std::string& name) {
  Address address;
  address.name.sun_family = AF_UNIX;
  const std::string full = "nupa-cm/" + name;
  // The first octet stays 0, which makes the name abstract.
  const size_t length = std::min(full.size(), sizeof address.name.sun_path - 1);
  std::memcpy(address.name.sun_path + 1, full.data(), length);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

std::string hex(const void* data, size_t length) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < length; ++i) {
    const uint8_t byte = static_cast<const uint8_t*>(data)[i];
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string service_text(uint64_t service_id) {
  const uint64_t big_endian = __builtin_bswap64(service_id);
  return "service/" + hex(&big_endian, sizeof big_endian) + "/";
}

Result<base::UniqueFd> open_socket() {
  base::UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return base::fail_call(errno, "cannot create a socket for messages between processes");
  return fd;
}

}  // namespace

std::string MadName::of_slot(uint32_t slot) { return "slot/" + std::to_string(slot); }

std::string MadName::of_service(uint64_t service_id, const Gid& address) {
  return service_text(service_id) + hex(address.raw.data(), address.raw.size());
}

std::string MadName::of_service(uint64_t service_id, Family family) {
  return service_text(service_id) + (family == Family::kIpv4 ? "4" : family == Family::kIpv6 ? "6" : "ib");
}

Result<MadName> MadName::take(const std::string& name) {
  auto fd = open_socket();
  if (!fd) return tl::unexpected(fd.error());
  const Address address = address_of(name);
  if (bind(fd->get(), reinterpret_cast<const sockaddr*>(&address.name), address.length) != 0)
    return base::fail_call(errno, "another process uses the service: ", name);
  return MadName(std::move(*fd));
}

bool MadName::is_taken(const std::string& name) {
  auto fd = open_socket();
  if (!fd) return false;
  const Address address = address_of(name);
  return connect(fd->get(), reinterpret_cast<const sockaddr*>(&address.name), address.length) == 0;
}

std::optional<MadName::Relayed> MadName::receive() const {
  for (;;) {
    RelayMessage message;
    const ssize_t got = recv(fd_.get(), &message, sizeof message, MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got != sizeof message || message.magic != kRelayMagic) continue;
    Relayed relayed;
    relayed.way.local = message.local;
    relayed.way.remote = message.remote;
    relayed.way.interface = message.interface;
    relayed.way.port = message.port;
    relayed.way.of_nupa = message.of_nupa != 0;
    relayed.mad = message.mad;
    return relayed;
  }
}

Result<MadRelay> MadRelay::open() {
  auto fd = open_socket();
  if (!fd) return tl::unexpected(fd.error());
  return MadRelay(std::move(*fd));
}

bool MadRelay::pass(const std::string& name, const Way& way, const Mad& mad) const {
  const RelayMessage message{
      kRelayMagic, way.local, way.remote, way.interface, way.port, static_cast<uint16_t>(way.of_nupa ? 1 : 0), mad};
  const Address address = address_of(name);
  ssize_t sent;
  do {
    sent = sendto(fd_.get(), &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL,
                  reinterpret_cast<const sockaddr*>(&address.name), address.length);
  } while (sent < 0 && errno == EINTR);
  // If the receiver's queue is full, the message is lost, as any datagram may be.
  return sent >= 0 || (errno != ECONNREFUSED && errno != ENOENT);
}

}  // namespace nupa::cm
