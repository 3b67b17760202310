#pragma once
#include <array>
#include <optional>
#include <vector>

#include <nupa/types.h>
#include "core/interfaces.h"

namespace nupa::core {

using InterfaceId = std::array<uint8_t, 8>;

/// The addresses of this network namespace's interfaces that are up, loopback left out, in the system's order.
struct HostAddresses {
  std::vector<GidEntry> v4;         ///< as ::ffff:a.b.c.d
  std::vector<GidEntry> v6;         ///< link-local ones too
  InterfaceId interface_id{};       ///< modified EUI-64 of the first hardware address, else from machine-id
  uint32_t interface_id_owner = 0;  ///< index of the interface whose hardware address that is, 0: none
};
/// `interfaces`: of these only, in their order.
HostAddresses read_host_addresses(const Interfaces& interfaces = {});

/// The port's GID table (IBTA annex A17), at most shm::kMaxGids entries: index 0 link local from the interface
/// identifier; then IPv4, so that index 1 is what programs pick by habit; then IPv6. Each address once; 127.0.0.1
/// only where there is no other IPv4 address.
std::vector<GidEntry> gid_table_of(const HostAddresses& addresses);

/// The index of `gid` in `table`, if it is there.
std::optional<uint32_t> find_gid(const std::vector<GidEntry>& table, const Gid& gid);

}  // namespace nupa::core
