#pragma once
#include <string>
#include <vector>

#include <nupa/result.h>

namespace nupa::core {

/// The network interfaces that NUPA_DEVICES gives to the device, joined by '+': `eth0+eth1`. The first is where it is
/// found, the others are further rails of its connections. Empty: it is not set, the device stands on all of them and
/// each connection on one. EINVAL: not of that form; ENODEV: there is no such interface. Both are logged.
Result<std::vector<std::string>> chosen_interfaces();

}  // namespace nupa::core
