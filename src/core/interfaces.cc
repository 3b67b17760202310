// SPDX-License-Identifier: Apache-2.0
#include "core/interfaces.h"

#include <net/if.h>

#include <cerrno>
#include <cstdlib>
#include <set>
#include <sstream>

#include "base/settings.h"
#include "shm/layout.h"

namespace nupa::core {
namespace {

/// Keeps an empty last part.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text + separator);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

}  // namespace

Result<std::vector<Interfaces>> parse_devices(const std::string& text) {
  if (text.empty()) return std::vector<Interfaces>(1);
  std::vector<Interfaces> devices;
  std::set<std::string> seen;
  for (const std::string& device : split(text, ',')) {
    devices.push_back(split(device, '+'));
    for (const std::string& name : devices.back()) {
      if (!name.empty() && seen.insert(name).second) continue;
      return fail(EINVAL, "NUPA_DEVICES=", text,
                  ": expected a list of devices like eth0+eth1,eth2, with each interface once");
    }
  }
  if (devices.size() <= shm::kMaxDevices) return devices;
  return fail(EINVAL, "NUPA_DEVICES names ", devices.size(), " devices; the limit is ", shm::kMaxDevices);
}

Result<std::vector<Interfaces>> chosen_devices() {
  const char* text = base::text_setting("NUPA_DEVICES");
  auto devices = parse_devices(text == nullptr ? "" : text);
  if (!devices) return devices;
  for (const Interfaces& device : *devices)
    for (const std::string& name : device) {
      if (if_nametoindex(name.c_str()) != 0) continue;
      return fail(ENODEV, "NUPA_DEVICES=", text, " names interface ", name, ", which does not exist");
    }
  return devices;
}

}  // namespace nupa::core
