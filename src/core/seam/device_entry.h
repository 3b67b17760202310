// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace nupa::core {

/// Network interfaces by name. Of a device, the first is where it is found, the others are further rails of its
/// connections. Empty: all that there are, and each connection uses one.
using Interfaces = std::vector<std::string>;

/// Properties in which the devices of a process differ.
struct DeviceEntry {
  uint32_t index = 0;
  Interfaces interfaces;
  std::vector<GidEntry> gids;  ///< the GID table of its port
  uint64_t node_guid = 0;      ///< network byte order: the interface identifier of GID 0
};

}  // namespace nupa::core
