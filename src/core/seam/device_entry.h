// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace nupa::core {

/// Names of network interfaces. Peers find a device at its first interface; the others are further rails of its
/// connections. Empty: all interfaces of the host, and each connection uses one of them.
using Interfaces = std::vector<std::string>;

/// The properties that differ between the devices of a process.
struct DeviceEntry {
  uint32_t index = 0;
  std::string name;  ///< "nupa0" and so on; a transport's own device: the name that the transport gives it
  /// The transport whose own device this is: only that one, and transports of shared memory, serve its queue pairs.
  /// Empty: all do.
  std::string owner;
  Interfaces interfaces;
  std::vector<GidEntry> gids;  ///< the GID table of its port
  uint64_t node_guid = 0;      ///< network byte order; the interface identifier of GID 0
  /// The addresses of the other hosts that a transport's own device leads to.
  std::vector<Gid> neighbours;
};

}  // namespace nupa::core
