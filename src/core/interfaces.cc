#include "core/interfaces.h"

#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>

#include "base/log.h"

namespace nupa::core {

Result<std::vector<std::string>> chosen_interfaces() {
  std::vector<std::string> names;
  const char* text = std::getenv("NUPA_DEVICES");
  if (text == nullptr || *text == '\0') return names;
  std::istringstream in(std::string(text) + '+');  // so that an empty last name shows
  for (std::string name; std::getline(in, name, '+');) {
    if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) {
      NUPA_ERROR("NUPA_DEVICES is a list of interfaces like eth0+eth1, not '%s'", text);
      return fail(EINVAL, "NUPA_DEVICES is wrong");
    }
    if (if_nametoindex(name.c_str()) == 0) {
      NUPA_ERROR("NUPA_DEVICES: there is no interface '%s' here", name.c_str());
      return fail(ENODEV, "NUPA_DEVICES names an interface that is not there");
    }
    names.push_back(name);
  }
  return names;
}

}  // namespace nupa::core
