#pragma once
#include <string>
#include <vector>

#include <nupa/result.h>
#include "core/seam/device_entry.h"

namespace nupa::core {

/// What `text` gives to each device, in the form of NUPA_DEVICES: devices are separated by ',', the interfaces of one
/// joined by '+' (`eth0+eth1,eth2`). An empty text is one device on all interfaces. EINVAL (logged): not of that form,
/// an interface that stands in it twice, or more than shm::kMaxDevices.
Result<std::vector<Interfaces>> parse_devices(const std::string& text);

/// The same of NUPA_DEVICES. ENODEV (logged): there is no such interface.
Result<std::vector<Interfaces>> chosen_devices();

}  // namespace nupa::core
