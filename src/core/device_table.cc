// SPDX-License-Identifier: Apache-2.0
#include "core/device_table.h"

#include <algorithm>
#include <cstring>

namespace nupa::core {

void make_unique(uint32_t index, const std::vector<InterfaceId>& taken, InterfaceId* id) {
  if (std::find(taken.begin(), taken.end(), *id) == taken.end()) return;
  (*id)[3] = 0;
  (*id)[4] = static_cast<uint8_t>(index);
}

std::string device_name(uint32_t index) { return "nupa" + std::to_string(index); }

Result<std::vector<DeviceEntry>> read_devices() {
  const auto chosen = chosen_devices();
  if (!chosen) return tl::unexpected(chosen.error());
  std::vector<DeviceEntry> devices;
  std::vector<InterfaceId> taken;
  for (const Interfaces& interfaces : *chosen) {
    DeviceEntry& device = devices.emplace_back();
    device.index = static_cast<uint32_t>(devices.size() - 1);
    device.interfaces = interfaces;
    HostAddresses addresses = read_host_addresses(interfaces);
    make_unique(device.index, taken, &addresses.interface_id);
    taken.push_back(addresses.interface_id);
    std::memcpy(&device.node_guid, addresses.interface_id.data(), sizeof device.node_guid);
    device.gids = gid_table_of(addresses);
  }
  return devices;
}

}  // namespace nupa::core
