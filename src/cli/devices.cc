// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include <nupa/device.h>
#include "cli/commands.h"
#include "core/device_attr.h"
#include "core/device_table.h"
#include "json/json.h"

namespace nupa::cli {
namespace {

std::string gid_text(const Gid& gid) {
  char text[INET6_ADDRSTRLEN];
  return inet_ntop(AF_INET6, gid.raw.data(), text, sizeof text);
}

std::string guid_text(uint64_t guid) {
  uint8_t bytes[8];
  std::memcpy(bytes, &guid, sizeof bytes);
  return fmt::format("{:02x}{:02x}:{:02x}{:02x}:{:02x}{:02x}:{:02x}{:02x}", bytes[0], bytes[1], bytes[2], bytes[3],
                     bytes[4], bytes[5], bytes[6], bytes[7]);
}

}  // namespace

int devices(bool json) {
  const PortAttr port = core::port_attr();
  const auto devices = core::read_devices();
  if (!devices) {
    fmt::print(stderr, "nupa: {}\n", devices.error().what());
    return 1;
  }
  const auto capabilities = core::explain_capabilities();
  nlohmann::json out = nlohmann::json::array();
  for (const core::DeviceEntry& device : *devices) {
    const std::string& name = device.name;
    if (json) {
      nlohmann::json one{{"name", name},
                         {"node_guid", guid_text(device.node_guid)},
                         {"fw_ver", core::device_attr().fw_ver},
                         {"interfaces", device.interfaces},
                         {"port", {{"number", 1}, {"state", "active"}, {"mtu", 4096}, {"link_layer", "Ethernet"}}}};
      for (const GidEntry& gid : device.gids) one["gids"].push_back({{"index", gid.index}, {"gid", gid_text(gid.gid)}});
      for (const auto& c : capabilities)
        one["capabilities"].push_back({{"name", c.name}, {"value", c.value}, {"source", c.source}});
      out.push_back(one);
      continue;
    }
    fmt::print("{}\n  node GUID     {}\n  version       {}\n", name, guid_text(device.node_guid),
               core::device_attr().fw_ver);
    if (!device.interfaces.empty()) fmt::print("  interfaces    {}\n", fmt::join(device.interfaces, " "));
    fmt::print("  port 1        {}, MTU 4096, link layer Ethernet\n",
               port.state == PortState::kActive ? "active" : "down");
    for (const GidEntry& gid : device.gids)
      fmt::print("  GID {:<2}        {} (RoCE v2)\n", gid.index, gid_text(gid.gid));
    for (const auto& c : capabilities) fmt::print("  {:<17} {:<20} {}\n", c.name, c.value, c.source);
  }
  if (json) fmt::print("{}\n", json_text(out, 2));
  return 0;
}

}  // namespace nupa::cli
