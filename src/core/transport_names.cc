#include "core/transport_names.h"

#include <algorithm>
#include <array>

namespace nupa::core {

namespace {

constexpr std::array kNames = {TransportName{"shm", "window"}, TransportName{"roce", ""}};

}  // namespace

std::span<const TransportName> transport_names() { return kNames; }

std::string transport_choices() {
  std::string text = "auto";
  for (const TransportName& each : kNames) text.append(", ").append(each.name);
  return text + " or a list of them";
}

std::optional<std::vector<size_t>> parse_transports(std::string_view value) {
  std::array<bool, kNames.size()> named{};
  if (value == "auto") {
    named.fill(true);
  } else {
    for (size_t end = 0; end != std::string_view::npos; value.remove_prefix(end == value.npos ? 0 : end + 1)) {
      end = value.find(',');
      const std::string_view word = value.substr(0, end);
      const auto found = std::find_if(kNames.begin(), kNames.end(), [&](const TransportName& each) {
        return word == each.name || (!each.old_name.empty() && word == each.old_name);
      });
      if (found == kNames.end()) return std::nullopt;
      bool& is_named = named[static_cast<size_t>(found - kNames.begin())];
      if (is_named) return std::nullopt;
      is_named = true;
    }
  }
  std::vector<size_t> places;
  for (size_t i = 0; i < named.size(); ++i)
    if (named[i]) places.push_back(i);
  return places;
}

std::string_view old_transport_name(std::string_view name) {
  for (const TransportName& each : kNames)
    if (each.name == name) return each.old_name;
  return {};
}

}  // namespace nupa::core
