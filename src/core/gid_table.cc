// SPDX-License-Identifier: Apache-2.0
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

#include "base/gid.h"
#include "shm/layout.h"

namespace nupa::core {
namespace {

constexpr size_t kMacBytes = 6;
/// ConnectX adapters have the first IPv4 address with RoCEv2 at this index, and programs use it by habit.
constexpr size_t kHabit = 3;

GidEntry entry_of(const Gid& gid, uint32_t interface_index) {
  GidEntry entry;
  entry.gid = gid;
  entry.interface_index = interface_index;
  return entry;
}

Gid plain(const in6_addr& address) {
  Gid gid;
  std::memcpy(gid.raw.data(), &address, 16);
  return gid;
}

/// Modified EUI-64 (RFC 4291, appendix A).
InterfaceId interface_id_of(const uint8_t* mac) {
  return {static_cast<uint8_t>(mac[0] ^ 2), mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]};
}

bool usable(const sockaddr_ll& link) {
  return link.sll_halen == kMacBytes &&
         std::any_of(link.sll_addr, link.sll_addr + kMacBytes, [](uint8_t octet) { return octet != 0; });
}

/// The identifier of a host without a hardware address: a hash (FNV-1a) of its machine-id, which must not be disclosed.
InterfaceId interface_id_of_machine() {
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
  InterfaceId id;
  std::memcpy(id.data(), &hash, 8);
  id[0] = static_cast<uint8_t>(id[0] & ~3);  // neither universal nor a group (RFC 4291, 2.5.1)
  return id;
}

/// Returns the index of an interface, which the list has beside its hardware address.
uint32_t index_of(const ifaddrs* list, const char* name) {
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next)
    if (at->ifa_addr != nullptr && at->ifa_addr->sa_family == AF_PACKET && std::strcmp(at->ifa_name, name) == 0)
      return static_cast<uint32_t>(reinterpret_cast<const sockaddr_ll*>(at->ifa_addr)->sll_ifindex);
  return if_nametoindex(name);
}

/// `name`: reads this interface only; null: reads all.
HostAddresses read_addresses(const ifaddrs* list, const char* name) {
  HostAddresses found;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (name != nullptr && std::strcmp(at->ifa_name, name) != 0) continue;
    // A chosen interface keeps its hardware address while it is down.
    if ((at->ifa_flags & IFF_UP) == 0 && (name == nullptr || at->ifa_addr->sa_family != AF_PACKET)) continue;
    switch (at->ifa_addr->sa_family) {
      case AF_INET: {
        const in_addr address = reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr;
        found.v4.push_back(entry_of(base::ipv4_gid(address), index_of(list, at->ifa_name)));
        break;
      }
      case AF_INET6: {
        const in6_addr address = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr;
        found.v6.push_back(entry_of(plain(address), index_of(list, at->ifa_name)));
        break;
      }
      case AF_PACKET: {
        const auto& link = *reinterpret_cast<const sockaddr_ll*>(at->ifa_addr);
        if (found.interface_id_owner != 0 || !usable(link)) break;
        found.interface_id = interface_id_of(link.sll_addr);
        found.interface_id_owner = static_cast<uint32_t>(link.sll_ifindex);
        break;
      }
      default:
        break;
    }
  }
  return found;
}

void append(const HostAddresses& more, HostAddresses* all) {
  all->v4.insert(all->v4.end(), more.v4.begin(), more.v4.end());
  all->v6.insert(all->v6.end(), more.v6.begin(), more.v6.end());
  if (all->interface_id_owner != 0 || more.interface_id_owner == 0) return;
  all->interface_id = more.interface_id;
  all->interface_id_owner = more.interface_id_owner;
}

/// Puts the address of index 1 at index 3, too. With one address alone, index 2 is that of index 0.
void repeat_first_address(std::vector<GidEntry>* table) {
  if (table->size() < kHabit) table->push_back(table->front());
  if (table->size() == shm::kMaxGids) table->pop_back();
  table->insert(table->begin() + kHabit, (*table)[1]);
  for (size_t i = 0; i < table->size(); ++i) (*table)[i].index = static_cast<uint32_t>(i);
}

}  // namespace

HostAddresses read_host_addresses(const Interfaces& interfaces) {
  HostAddresses found;
  found.interface_id = interface_id_of_machine();
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  if (interfaces.empty()) append(read_addresses(list, nullptr), &found);
  for (const std::string& name : interfaces) append(read_addresses(list, name.c_str()), &found);
  freeifaddrs(list);
  return found;
}

std::vector<GidEntry> gid_table_of(const HostAddresses& addresses) {
  Gid link_local;
  link_local.raw[0] = 0xfe;
  link_local.raw[1] = 0x80;
  std::copy(addresses.interface_id.begin(), addresses.interface_id.end(), link_local.raw.begin() + 8);
  std::vector<GidEntry> table = {entry_of(link_local, addresses.interface_id_owner)};
  const auto add = [&](const GidEntry& entry) {
    if (table.size() == shm::kMaxGids || find_gid(table, entry.gid)) return;
    table.push_back(entry);
    table.back().index = static_cast<uint32_t>(table.size() - 1);
  };
  for (const GidEntry& entry : addresses.v4) add(entry);
  for (const GidEntry& entry : addresses.v6)
    if (!base::is_link_local(entry.gid)) add(entry);
  // Programs prefer IPv4 at any index, and this one leads to no other host.
  if (table.size() == 1) add(entry_of(base::ipv4_gid(127, 0, 0, 1), 0));
  for (const GidEntry& entry : addresses.v6)
    if (base::is_link_local(entry.gid)) add(entry);
  if (!addresses.v4.empty()) repeat_first_address(&table);
  return table;
}

std::optional<uint32_t> find_gid(const std::vector<GidEntry>& table, const Gid& gid) {
  for (size_t i = 0; i < table.size(); ++i)
    if (table[i].gid == gid) return static_cast<uint32_t>(i);
  return std::nullopt;
}

}  // namespace nupa::core
