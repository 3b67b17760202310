#pragma once
#include <vector>

#include <nupa/types.h>

namespace nupa::core {

/// The port's GID table, read from the system's interfaces: index 0 link local, index 1 and on the addresses of the
/// interfaces that are up, IPv4 first (::ffff:a.b.c.d, RoCE v2), loopback only where there is nothing else.
std::vector<GidEntry> read_gid_table();

/// The device's GUID, network byte order: the interface identifier of GID 0. The same in each process of a host.
uint64_t node_guid();

}  // namespace nupa::core
