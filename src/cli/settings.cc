// SPDX-License-Identifier: Apache-2.0
#include "cli/settings.h"

#include <algorithm>
#include <cerrno>
#include <fmt/core.h>

#include "base/settings.h"
#include "ccl/bootstrap/launcher.h"
#include "core/interfaces.h"
#include "core/transport_names.h"
#include "transport/pool/medium/spec.h"

namespace nupa::cli {
namespace {

template <class Value>
Result<void> without_value(const Result<Value>& read) {
  if (!read) return tl::unexpected(read.error());
  return {};
}

/// Checks the form. The library of collectives knows the names, and checks them when it creates a communicator.
Result<void> check_algorithms(std::string_view text) {
  const std::string_view all = text;
  for (size_t end = 0; end != text.npos; text.remove_prefix(end == text.npos ? 0 : end + 1)) {
    end = text.find(',');
    const std::string_view one = text.substr(0, end);
    if (one.empty() || one.front() == '=' || one.find('=') == one.npos)
      return fail(EINVAL, "NUPA_CCL_ALGO=", all, ": expected OPERATION=ALGORITHM,... such as all_reduce=ring");
  }
  return {};
}

/// The check of a variable of Kind::kText.
struct TextCheck {
  base::Variable variable;
  Result<void> (*check)(const char* text, CheckedFor checked_for);
};
const TextCheck kTextChecks[] = {
    {"NUPA_TRANSPORT", [](const char*, CheckedFor) { return without_value(core::chosen_transports()); }},
    {"NUPA_DEVICES",
     [](const char* text, CheckedFor checked_for) {
       return without_value(checked_for == CheckedFor::kProgram ? core::parse_devices(text) : core::chosen_devices());
     }},
    {"NUPA_POOL", [](const char* text, CheckedFor) { return without_value(pool::parse_spec(text, "NUPA_POOL")); }},
    {"NUPA_CCL_ROOT", [](const char* text, CheckedFor) { return ccl::check_root(text); }},
    {"NUPA_CCL_ALGO", [](const char* text, CheckedFor) { return check_algorithms(text); }},
};

Result<void> check(const base::Setting& one, CheckedFor checked_for) {
  const char* const text = base::text_setting(base::Variable(one));
  const auto own = std::find_if(std::begin(kTextChecks), std::end(kTextChecks), [&](const TextCheck& each) {
    return std::string_view(each.variable.name()) == one.name;
  });
  if (text != nullptr && own != std::end(kTextChecks)) return own->check(text, checked_for);
  return base::check_setting(one);
}

/// Returns the text of the page without its markup. A link becomes the path of the file that it leads to.
std::string plain_text(std::string_view markup) {
  constexpr std::string_view kUp = "../";
  std::string text;
  while (!markup.empty()) {
    const size_t begin = markup.find("[");
    const size_t middle = markup.find("](", begin);
    const size_t end = markup.find(")", middle);
    text += markup.substr(0, begin);
    if (begin == markup.npos || middle == markup.npos || end == markup.npos) break;
    std::string_view target = markup.substr(middle + 2, end - middle - 2);
    target = target.substr(0, target.find('#'));
    if (target.starts_with(kUp)) target.remove_prefix(kUp.size());
    text.append("docs/").append(target);
    markup.remove_prefix(end + 1);
  }
  std::erase(text, '`');
  return text;
}

}  // namespace

std::string wrong_settings(CheckedFor checked_for, const std::vector<std::string_view>& replaced) {
  std::string wrong;
  for (const base::Setting& each : base::kSettings) {
    if (std::find(replaced.begin(), replaced.end(), each.name) != replaced.end()) continue;
    if (const auto checked = check(each, checked_for); !checked)
      wrong += (wrong.empty() ? "" : "; ") + std::string(checked.error().what());
  }
  return wrong;
}

std::string help_of_settings() {
  constexpr std::string_view kShown[] = {"Devices and transports", "Packets"};
  std::string text = "Environment:\n";
  for (const base::Setting& each : base::kSettings) {
    const bool is_shown = std::find(std::begin(kShown), std::end(kShown), each.group) != std::end(kShown);
    if (!is_shown || !std::string_view(each.name).starts_with("NUPA_")) continue;
    const std::string accepted = each.form.empty() ? base::accepted_values(each) : plain_text(each.form);
    const std::string usual = plain_text(each.usual.empty() ? each.usual_in_words : each.usual);
    text += fmt::format("  {:<22}  {} ({}; default: {})\n", each.name, plain_text(each.meaning), accepted, usual);
  }
  return text + "  nupa(7) and docs/reference/environment.md have all variables.";
}

}  // namespace nupa::cli
