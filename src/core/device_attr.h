// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include <nupa/types.h>

#include "core/seam/request.h"

namespace nupa::core {

/// The attributes of every device, without its GUIDs. Cheap after the first call.
const DeviceAttr& device_attr();
/// Device::clock_khz().
uint64_t clock_khz();
PortAttr port_attr();

/// Local identifiers have no meaning on Ethernet. This one means "this host". Programs that use no GIDs (qperf without
/// a connection manager) can then still address their peer: its queue pair number identifies it.
constexpr uint16_t kHostLid = 1;

/// A capability, its value, and the reason for the value, for people.
struct Capability {
  std::string name;
  std::string value;
  std::string source;
};
std::vector<Capability> explain_capabilities();

}  // namespace nupa::core
