#include "base/settings.h"

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace nupa::base {
namespace {

/// "NAME=value" of each variable that says something to NUPA; empty for a program that asked for NUPA by itself, which
/// may drop a variable and mean it.
std::vector<std::string> at_start() {
  std::vector<std::string> found;
  const char* preloaded = std::getenv("LD_PRELOAD");
  if (preloaded == nullptr || std::string_view(preloaded).find("libnupa_sockets") == std::string_view::npos)
    return found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with("NUPA_") || text.starts_with("XDG_RUNTIME_DIR=")) found.emplace_back(text);
  }
  return found;
}

const std::vector<std::string>& remembered() {
  static const auto* list = new std::vector<std::string>(at_start());
  return *list;
}

[[gnu::constructor]] void remember() { remembered(); }

}  // namespace

const char* setting(const char* name) {
  if (const char* now = std::getenv(name); now != nullptr) return now;
  const std::string_view wanted = name;
  for (const std::string& entry : remembered()) {
    if (entry.size() > wanted.size() && entry.starts_with(wanted) && entry[wanted.size()] == '=')
      return entry.c_str() + wanted.size() + 1;
  }
  return nullptr;
}

}  // namespace nupa::base
