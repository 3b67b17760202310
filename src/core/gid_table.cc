#include "core/gid_table.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "segment/layout.h"

namespace nupa::core {
namespace {

struct Addresses {
  std::vector<GidEntry> v4;
  std::vector<GidEntry> v6;
  std::array<uint8_t, 8> eui{};  ///< of the first interface with a hardware address
  bool has_eui = false;
};

GidEntry entry_of(const Gid& gid, uint32_t interface_index) {
  GidEntry entry;
  entry.gid = gid;
  entry.interface_index = interface_index;
  return entry;
}

Gid mapped(const in_addr& address) {
  Gid gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  std::memcpy(&gid.raw[12], &address, 4);
  return gid;
}

Addresses read_addresses() {
  Addresses found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const uint32_t index = if_nametoindex(at->ifa_name);
    switch (at->ifa_addr->sa_family) {
      case AF_INET:
        found.v4.push_back(entry_of(mapped(reinterpret_cast<sockaddr_in*>(at->ifa_addr)->sin_addr), index));
        break;
      case AF_INET6: {
        Gid gid;
        std::memcpy(gid.raw.data(), &reinterpret_cast<sockaddr_in6*>(at->ifa_addr)->sin6_addr, 16);
        found.v6.push_back(entry_of(gid, index));
        break;
      }
      case AF_PACKET: {
        const auto* link = reinterpret_cast<sockaddr_ll*>(at->ifa_addr);
        if (found.has_eui || link->sll_halen != 6) break;
        const uint8_t* mac = link->sll_addr;
        // Modified EUI-64 (RFC 4291, appendix A).
        found.eui = {static_cast<uint8_t>(mac[0] ^ 2), mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]};
        found.has_eui = true;
        break;
      }
      default:
        break;
    }
  }
  freeifaddrs(list);
  return found;
}

/// Without a hardware address the machine's identity stands in, hashed (FNV-1a): it is not to be given away.
std::array<uint8_t, 8> eui_of_machine() {
  uint64_t hash = 0xcbf29ce484222325ull;
  char text[64] = "nupa";
  const int fd = open("/etc/machine-id", O_RDONLY | O_CLOEXEC);
  ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text);
  if (fd >= 0) close(fd);
  if (length <= 0) {
    gethostname(text, sizeof text);
    length = static_cast<ssize_t>(strnlen(text, sizeof text));
  }
  for (ssize_t i = 0; i < length; ++i) hash = (hash ^ static_cast<uint8_t>(text[i])) * 0x100000001b3ull;
  std::array<uint8_t, 8> eui;
  std::memcpy(eui.data(), &hash, 8);
  eui[0] = static_cast<uint8_t>((eui[0] & ~1) | 2);  // local, individual
  return eui;
}

}  // namespace

std::vector<GidEntry> read_gid_table() {
  Addresses found = read_addresses();
  if (!found.has_eui) found.eui = eui_of_machine();
  if (found.v4.empty()) found.v4.push_back(entry_of(mapped({htonl(INADDR_LOOPBACK)}), 0));
  std::vector<GidEntry> table;
  Gid link_local;
  link_local.raw[0] = 0xfe;
  link_local.raw[1] = 0x80;
  std::copy(found.eui.begin(), found.eui.end(), link_local.raw.begin() + 8);
  table.push_back(entry_of(link_local, found.v4.front().interface_index));
  const auto add = [&](const GidEntry& entry) {
    const bool known = std::any_of(table.begin(), table.end(), [&](const GidEntry& e) { return e.gid == entry.gid; });
    if (!known && table.size() < segment::kMaxGids) table.push_back(entry);
  };
  for (const GidEntry& entry : found.v4) add(entry);
  for (const GidEntry& entry : found.v6) add(entry);
  for (size_t i = 0; i < table.size(); ++i) table[i].index = static_cast<uint32_t>(i);
  return table;
}

uint64_t node_guid() {
  Addresses found = read_addresses();
  if (!found.has_eui) found.eui = eui_of_machine();
  uint64_t guid;
  std::memcpy(&guid, found.eui.data(), 8);
  return guid;
}

}  // namespace nupa::core
