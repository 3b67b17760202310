// SPDX-License-Identifier: Apache-2.0
#include "core/transport_names.h"

#include <algorithm>
#include <cerrno>

#include "base/settings.h"
#include "core/transport_entry.h"

namespace nupa::core {

std::string transport_words() {
  std::string text = "auto";
  for (const TransportEntry& each : transport_entries()) text.append(", ").append(each.name);
  return text;
}

std::string transport_choices() { return transport_words() + " or a list of them"; }

std::optional<std::vector<size_t>> parse_transports(std::string_view value) {
  const auto entries = transport_entries();
  std::vector<bool> named(entries.size());
  if (value == "auto") {
    named.assign(entries.size(), true);
  } else {
    for (size_t end = 0; end != std::string_view::npos; value.remove_prefix(end == value.npos ? 0 : end + 1)) {
      end = value.find(',');
      const std::string_view word = value.substr(0, end);
      const auto found = std::find_if(entries.begin(), entries.end(), [&](const TransportEntry& each) {
        return word == each.name || (!each.old_name.empty() && word == each.old_name);
      });
      if (found == entries.end()) return std::nullopt;
      const auto place = static_cast<size_t>(found - entries.begin());
      if (named[place]) return std::nullopt;
      named[place] = true;
    }
  }
  std::vector<size_t> places;
  for (size_t i = 0; i < named.size(); ++i)
    if (named[i]) places.push_back(i);
  return places;
}

Result<std::vector<size_t>> chosen_transports() {
  const char* const wanted = base::text_setting("NUPA_TRANSPORT");
  auto places = parse_transports(wanted == nullptr ? base::find_setting("NUPA_TRANSPORT")->usual : wanted);
  if (!places)
    return fail(EINVAL, "NUPA_TRANSPORT=", wanted, ": no such transport (expected ", transport_choices(), ")");
  return std::move(*places);
}

std::string_view old_transport_name(std::string_view name) {
  for (const TransportEntry& each : transport_entries())
    if (each.name == name) return each.old_name;
  return {};
}

}  // namespace nupa::core
