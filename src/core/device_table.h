// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include <nupa/result.h>
#include <nupa/types.h>
#include "core/gid_table.h"
#include "core/interfaces.h"
#include "core/seam/device_entry.h"

namespace nupa::core {

/// Makes `id` unique, since interfaces may share a hardware address (VLANs do) or have none. If `id` is one of those
/// `taken`, the number of the device replaces the two octets that EUI-64 fills in, as Linux does it for link-local
/// addresses.
void make_unique(uint32_t index, const std::vector<InterfaceId>& taken, InterfaceId* id);

/// The name of the device with that place in NUPA_DEVICES: nupa0 and so on.
std::string device_name(uint32_t number);
/// The name of the device at `index` in read_devices(), of another process with the same settings.
std::string device_name_at(const std::vector<DeviceEntry>& devices, uint32_t index);

/// The devices that NUPA_DEVICES lists, with the present addresses of their interfaces. Without NUPA_DEVICES: the
/// transports' own devices, and one device with all interfaces. The
/// result is the same in each process of a network namespace. Errors: those of chosen_devices().
Result<std::vector<DeviceEntry>> read_devices();

}  // namespace nupa::core
