#include <arpa/inet.h>
#include <fmt/core.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include <nupa/device.h>
#include "commands.h"
#include "core/device_attr.h"
#include "core/gid_table.h"
#include "core/interfaces.h"

namespace nupa::cli {
namespace {

std::string text_of(const Gid& gid) {
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
  const auto interfaces = core::chosen_interfaces();
  if (!interfaces) return 1;  // and it was said why
  const auto gids = core::read_gid_table(*interfaces);
  const auto capabilities = core::explain_capabilities();
  nlohmann::json out = nlohmann::json::array();
  for (const DeviceName& device : list_devices()) {
    if (json) {
      nlohmann::json one{{"name", device.name},
                         {"node_guid", guid_text(device.node_guid)},
                         {"fw_ver", core::device_attr().fw_ver},
                         {"port", {{"number", 1}, {"state", "active"}, {"mtu", 4096}, {"link_layer", "Ethernet"}}}};
      for (const GidEntry& gid : gids) one["gids"].push_back({{"index", gid.index}, {"gid", text_of(gid.gid)}});
      for (const auto& c : capabilities)
        one["capabilities"].push_back({{"name", c.name}, {"value", c.value}, {"source", c.source}});
      out.push_back(one);
      continue;
    }
    fmt::print("{}\n  node GUID     {}\n  version       {}\n  port 1        {}, MTU 4096, link layer Ethernet\n",
               device.name, guid_text(device.node_guid), core::device_attr().fw_ver,
               port.state == 4 ? "active" : "down");
    for (const GidEntry& gid : gids) fmt::print("  GID {:<2}        {} (RoCE v2)\n", gid.index, text_of(gid.gid));
    for (const auto& c : capabilities) fmt::print("  {:<17} {:<20} {}\n", c.name, c.value, c.source);
  }
  if (json) fmt::print("{}\n", out.dump(2));
  return 0;
}

}  // namespace nupa::cli
