#pragma once
#include <string>
#include <vector>

#include <nupa/result.h>
#include <nupa/types.h>
#include "core/gid_table.h"
#include "core/interfaces.h"

namespace nupa::core {

/// What tells the devices of a process apart; all else they have in common.
struct DeviceEntry {
  uint32_t index = 0;
  Interfaces interfaces;
  std::vector<GidEntry> gids;  ///< the GID table of its port
  uint64_t node_guid = 0;      ///< network byte order: the interface identifier of GID 0
};

/// Interfaces may share a hardware address (VLANs do), or have none: where `id` is one of those `taken`, the number of
/// the device takes the place of the two octets that EUI-64 fills in, as Linux does it for link-local addresses.
void make_unique(uint32_t index, const std::vector<InterfaceId>& taken, InterfaceId* id);

/// nupa0 and so on.
std::string device_name(uint32_t index);

/// The devices that NUPA_DEVICES names, with the addresses that their interfaces have now; the same in each process of
/// a network namespace. Errors: those of chosen_devices().
Result<std::vector<DeviceEntry>> read_devices();

}  // namespace nupa::core
