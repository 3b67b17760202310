// SPDX-License-Identifier: Apache-2.0
#include "cli/definitions.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/settings_table.h"
#include "json/json.h"
#include "nupa_config.h"

namespace nupa::cli {
namespace {

using nlohmann::json;

constexpr const char* kMore = ",...";  // after choices: several with commas

/// Returns the words of the last "{a,b,c}" of an option's type. Empty: it accepts any text.
json choices_of(const std::string& type) {
  const size_t begin = type.rfind('{');
  const size_t end = type.rfind('}');
  if (begin == type.npos || end == type.npos || end < begin) return json::array();
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

json json_of(const CLI::Option& option) {
  json names = json::array();
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  json excludes = json::array();
  for (const CLI::Option* other : option.get_excludes()) excludes.push_back(other->get_name());
  const bool takes_value = option.get_items_expected_max() > 0;
  const std::string type = takes_value ? option.get_type_name() : "";
  return {{"names", names},
          {"positional", option.get_positional() ? option.get_name(true) : ""},
          {"description", option.get_description()},
          {"type", type},
          {"choices", choices_of(type)},
          {"is_list", CLI::detail::find_and_replace(type, kMore, "") != type},
          {"default", option.get_default_str()},
          {"is_required", option.get_required()},
          {"is_repeatable", option.get_expected_max() == CLI::detail::expected_max_vector_size},
          {"excludes", excludes}};
}

json json_of(const CLI::App& command, const std::vector<const CLI::App*>& runners) {
  json options = json::array();
  for (const CLI::Option* option : command.get_options(nullptr))
    if (!option->get_group().empty()) options.push_back(json_of(*option));
  json commands = json::array();
  for (const CLI::App* inner : command.get_subcommands(nullptr)) commands.push_back(json_of(*inner, runners));
  // CLI11 hands a footer down to the commands without one.
  const CLI::App* parent = command.get_parent();
  const bool is_own = parent == nullptr || parent->get_footer() != command.get_footer();
  return {{"name", command.get_name()},
          {"description", command.get_description()},
          {"footer", is_own ? command.get_footer() : ""},
          {"runs_program", std::find(runners.begin(), runners.end(), &command) != runners.end()},
          {"options", options},
          {"commands", commands}};
}

const char* name_of(base::Kind kind) {
  switch (kind) {
    case base::Kind::kBoolean:
      return "boolean";
    case base::Kind::kNumber:
      return "number";
    case base::Kind::kWord:
      return "word";
    case base::Kind::kText:
      return "text";
    case base::Kind::kFolder:
      return "folder";
    case base::Kind::kReadFile:
      return "read_file";
    case base::Kind::kWrittenFile:
      return "written_file";
  }
  return "";
}

/// The fields are those of base::Setting.
json json_of(const base::Setting& one) {
  return {{"name", one.name},
          {"kind", name_of(one.kind)},
          {"group", one.group},
          {"readers", one.readers},
          {"usual", one.usual},
          {"least", one.least},
          {"most", one.most},
          {"unit", one.unit},
          {"choices", one.choices},
          {"form", one.form},
          {"usual_in_words", one.usual_in_words},
          {"meaning", one.meaning}};
}

}  // namespace

std::string choices_text(const std::string& names, bool is_list) {
  return "{" + CLI::detail::find_and_replace(names, ", ", ",") + "}" + (is_list ? kMore : "");
}

std::string definitions_of(const CLI::App& program, const std::vector<const CLI::App*>& runners) {
  json all = json_of(program, runners);
  all["name"] = "nupa";
  all["version"] = NUPA_VERSION;
  for (const base::Setting& each : base::kSettings) all["variables"].push_back(json_of(each));
  return json_text(all, 1);
}

}  // namespace nupa::cli
