#pragma once
#include <string>
#include <vector>

#include <nupa/types.h>

namespace nupa::core {

/// What the device can do. The same for every open; cheap after the first call.
const DeviceAttr& device_attr();
PortAttr port_attr();

/// A capability with where it comes from, for people.
struct Capability {
  std::string name;
  std::string value;
  std::string source;
};
std::vector<Capability> explain_capabilities();

}  // namespace nupa::core
