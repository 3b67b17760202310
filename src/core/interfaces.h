#pragma once
#include <string>
#include <vector>

#include <nupa/result.h>

namespace nupa::core {

/// Network interfaces by name. Of a device, the first is where it is found, the others are further rails of its
/// connections. Empty: all that there are, and each connection uses one.
using Interfaces = std::vector<std::string>;

/// What `text` gives to each device, in the form of NUPA_DEVICES: devices are separated by ',', the interfaces of one
/// joined by '+' (`eth0+eth1,eth2`). An empty text is one device on all interfaces. EINVAL (logged): not of that form,
/// an interface that stands in it twice, or more than segment::kMaxDevices.
Result<std::vector<Interfaces>> parse_devices(const std::string& text);

/// The same of NUPA_DEVICES. ENODEV (logged): there is no such interface.
Result<std::vector<Interfaces>> chosen_devices();

}  // namespace nupa::core
