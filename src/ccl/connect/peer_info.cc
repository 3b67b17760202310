// SPDX-License-Identifier: Apache-2.0
#include "ccl/connect/peer_info.h"

#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <type_traits>

#include "base/boot_id.h"
#include "base/unique_fd.h"
#include "progress/descriptors.h"

namespace nupa::ccl {
namespace {

/// The wire format of peer info, in little-endian numbers. The name of the host follows.
struct Wire {
  uint32_t magic;
  uint16_t version;
  uint16_t name_length;
  uint8_t gid[16];
  uint8_t pool_gid[16];
  uint8_t memory_domain[16];
  uint8_t host[16];
  uint32_t mailbox;
  uint32_t process;
  uint64_t process_space;
  uint64_t processors[PeerInfo::kMaxProcessors / 64];
};
static_assert(sizeof(Wire) == 216 && std::is_trivially_copyable_v<Wire>);

constexpr uint32_t kMagic = 0x4443434e;  // "NCCD"
constexpr uint16_t kVersion = 3;
constexpr size_t kLongestName = 64;

}  // namespace

PeerInfo peer_info_of_this_process() {
  PeerInfo peer_info;
  peer_info.host = base::boot_id();
  peer_info.process = static_cast<uint32_t>(getpid());
  struct stat seen {};
  if (stat("/proc/self/ns/pid", &seen) == 0) peer_info.process_space = seen.st_ino;
  char name[kLongestName + 1] = {};
  if (gethostname(name, kLongestName) == 0) peer_info.host_name = name;
  cpu_set_t may;
  CPU_ZERO(&may);
  if (sched_getaffinity(0, sizeof may, &may) == 0)
    for (size_t i = 0; i < PeerInfo::kMaxProcessors; ++i)
      if (CPU_ISSET(i, &may)) peer_info.processors[i / 64] |= uint64_t{1} << i % 64;
  return peer_info;
}

PeerInfoBytes PeerInfo::encode() const {
  Wire wire{};
  wire.magic = kMagic;
  wire.version = kVersion;
  wire.name_length = static_cast<uint16_t>(host_name.size());
  std::memcpy(wire.gid, gid.raw.data(), sizeof wire.gid);
  std::memcpy(wire.pool_gid, pool_gid.raw.data(), sizeof wire.pool_gid);
  std::memcpy(wire.memory_domain, memory_domain.data(), sizeof wire.memory_domain);
  std::memcpy(wire.host, host.data(), sizeof wire.host);
  wire.mailbox = mailbox;
  wire.process = process;
  wire.process_space = process_space;
  std::memcpy(wire.processors, processors.data(), sizeof wire.processors);
  PeerInfoBytes peer_info(sizeof wire + host_name.size());
  std::memcpy(peer_info.data(), &wire, sizeof wire);
  std::memcpy(peer_info.data() + sizeof wire, host_name.data(), host_name.size());
  return peer_info;
}

Result<PeerInfo> PeerInfo::decode(const PeerInfoBytes& from) {
  Wire wire{};
  if (from.size() < sizeof wire) return fail(EPROTO, "a rank's peer info is too short");
  std::memcpy(&wire, from.data(), sizeof wire);
  if (wire.magic != kMagic || wire.version != kVersion || wire.name_length > kLongestName ||
      from.size() != sizeof wire + wire.name_length)
    return fail(EPROTO, "a rank has another version of NUPA, or its peer info is invalid");
  PeerInfo peer_info;
  std::memcpy(peer_info.gid.raw.data(), wire.gid, sizeof wire.gid);
  std::memcpy(peer_info.pool_gid.raw.data(), wire.pool_gid, sizeof wire.pool_gid);
  std::memcpy(peer_info.memory_domain.data(), wire.memory_domain, sizeof wire.memory_domain);
  std::memcpy(peer_info.host.data(), wire.host, sizeof wire.host);
  std::memcpy(peer_info.processors.data(), wire.processors, sizeof wire.processors);
  peer_info.mailbox = wire.mailbox;
  peer_info.process = wire.process;
  peer_info.process_space = wire.process_space;
  peer_info.host_name.assign(reinterpret_cast<const char*>(from.data()) + sizeof wire, wire.name_length);
  return peer_info;
}

bool PeerInfo::can_watch(const PeerInfo& other) const {
  return host == other.host && process_space != 0 && process_space == other.process_space;
}

bool PeerInfo::sees_end_of(const PeerInfo& other) const {
  if (!can_watch(other)) return false;
  const base::UniqueFd there(static_cast<int>(syscall(SYS_pidfd_open, other.process, 0)));
  if (!there) return errno == ESRCH;
  // A pidfd is readable once the process has exited, even if its parent has not waited for it.
  return progress::is_readable(there.get());
}

std::string PeerInfo::text() const { return "process " + std::to_string(process) + " on " + host_name; }

}  // namespace nupa::ccl
