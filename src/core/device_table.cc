// SPDX-License-Identifier: Apache-2.0
#include "core/device_table.h"

#include <algorithm>
#include <cstring>

#include "core/transport_entry.h"
#include "core/transport_names.h"
#include "shm/layout.h"

namespace nupa::core {

void make_unique(uint32_t index, const std::vector<InterfaceId>& taken, InterfaceId* id) {
  if (std::find(taken.begin(), taken.end(), *id) == taken.end()) return;
  (*id)[3] = 0;
  (*id)[4] = static_cast<uint8_t>(index);
}

std::string device_name(uint32_t number) { return "nupa" + std::to_string(number); }

std::string device_name_at(const std::vector<DeviceEntry>& devices, uint32_t index) {
  return index < devices.size() ? devices[index].name : device_name(index);
}

namespace {

/// The GUID of a device without a hardware address: a hash (FNV-1a) of its GID.
uint64_t guid_of(const Gid& gid) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const uint8_t octet : gid.raw) hash = (hash ^ octet) * 0x100000001b3ull;
  InterfaceId id;
  std::memcpy(id.data(), &hash, sizeof hash);
  id[0] = static_cast<uint8_t>((id[0] & ~3) | 2);  // neither universal nor a group
  std::memcpy(&hash, id.data(), sizeof hash);
  return hash;
}

/// The transports' own devices come first: a program that takes the first device is to reach the hosts that only they
/// reach.
void add_own_devices(std::vector<DeviceEntry>* devices) {
  const auto chosen = chosen_transports();
  if (!chosen) return;
  const auto entries = transport_entries();
  for (const size_t place : *chosen) {
    if (entries[place].device == nullptr) continue;
    const std::optional<OwnDevice> own = entries[place].device();
    if (!own) continue;
    DeviceEntry& device = devices->emplace_back();
    device.index = static_cast<uint32_t>(devices->size() - 1);
    device.name = own->name;
    device.owner = entries[place].name;
    device.node_guid = guid_of(own->gid);
    device.gids.emplace_back().gid = own->gid;
    device.neighbours = own->neighbours;
  }
}

}  // namespace

Result<std::vector<DeviceEntry>> read_devices() {
  const auto chosen = chosen_devices();
  if (!chosen) return tl::unexpected(chosen.error());
  std::vector<DeviceEntry> devices;
  // A program whose devices are named gets those.
  if (chosen->size() == 1 && chosen->front().empty()) add_own_devices(&devices);
  uint32_t number = 0;
  std::vector<InterfaceId> taken;
  for (const Interfaces& interfaces : *chosen) {
    DeviceEntry& device = devices.emplace_back();
    device.index = static_cast<uint32_t>(devices.size() - 1);
    device.name = device_name(number);
    device.interfaces = interfaces;
    HostAddresses addresses = read_host_addresses(interfaces);
    make_unique(number++, taken, &addresses.interface_id);
    taken.push_back(addresses.interface_id);
    std::memcpy(&device.node_guid, addresses.interface_id.data(), sizeof device.node_guid);
    device.gids = gid_table_of(addresses);
  }
  return devices;
}

}  // namespace nupa::core
