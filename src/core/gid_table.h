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
/// interface identifier. IPv4 addresses follow, so that index 1 is the entry that programs use by habit, and then IPv6
/// addresses. Each address occurs once; 127.0.0.1 occurs only if there is no other IPv4 address.
std::vector<GidEntry> gid_table_of(const HostAddresses& addresses);

/// Returns the index of `gid` in `table`, if it is there.
std::optional<uint32_t> find_gid(const std::vector<GidEntry>& table, const Gid& gid);

}  // namespace nupa::core
