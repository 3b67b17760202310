#pragma once
#include <string>
#include <vector>

#include <nupa/types.h>

#include "core/seam/request.h"

namespace nupa::core {

/// What every device can do, but for its GUIDs; cheap after the first call.
const DeviceAttr& device_attr();
PortAttr port_attr();

/// Local identifiers say nothing on Ethernet. This one stands for "this host", so that programs which know no GIDs
/// (qperf without a connection manager) still name their peer: its queue pair number does the rest.
constexpr uint16_t kHostLid = 1;

/// A capability with where it comes from, for people.
struct Capability {
  std::string name;
  std::string value;
  std::string source;
};
std::vector<Capability> explain_capabilities();

}  // namespace nupa::core
