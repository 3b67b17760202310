// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <optional>
#include <vector>

#include <nupa/types.h>
#include "core/interfaces.h"

namespace nupa::core {

using InterfaceId = std::array<uint8_t, 8>;

/// The addresses of the interfaces of this network namespace that are up, without loopback, in the system's order.
struct HostAddresses {
  std::vector<GidEntry> v4;         ///< in the form ::ffff:a.b.c.d
  std::vector<GidEntry> v6;         ///< including link-local addresses
  InterfaceId interface_id{};       ///< modified EUI-64 of the first hardware address, or derived from machine-id
  uint32_t interface_id_owner = 0;  ///< index of the interface with that hardware address; 0: none
};
/// `interfaces`: reads only these, in their order; empty: reads all.
HostAddresses read_host_addresses(const Interfaces& interfaces = {});

/// The port's GID table (IBTA annex A17), at most shm::kMaxGids entries. Index 0 is the link-local GID made from the
/// interface identifier. IPv4 addresses follow, then IPv6 addresses, then those that lead to no other network:
/// 127.0.0.1, if there is no other IPv4 address, and link-local ones. The first IPv4 address is at index 1 and once
/// more at index 3, because programs use one or the other by habit. Other addresses occur once.
std::vector<GidEntry> gid_table_of(const HostAddresses& addresses);

/// Returns the index of `gid` in `table`, if it is there.
std::optional<uint32_t> find_gid(const std::vector<GidEntry>& table, const Gid& gid);

}  // namespace nupa::core
