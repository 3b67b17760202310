// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include <nupa/result.h>
#include "core/seam/device_entry.h"

namespace nupa::core {

/// Parses `text` in the form of NUPA_DEVICES: ',' separates devices, '+' joins the interfaces of one device
/// (`eth0+eth1,eth2`). An empty text means one device on all interfaces. EINVAL: the form is wrong, an interface occurs
/// twice, or there are more than shm::kMaxDevices devices.
Result<std::vector<Interfaces>> parse_devices(const std::string& text);

/// Parses the value of NUPA_DEVICES. ENODEV: an interface does not exist.
Result<std::vector<Interfaces>> chosen_devices();

}  // namespace nupa::core
