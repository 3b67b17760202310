// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The commands and options of the program as data, for manual pages and completion. They are those of --help.
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace nupa::cli {

/// Returns the description of a check that accepts the names in "a, b, c": "{a,b,c}", as CLI::IsMember writes it.
/// `is_list`: the option also accepts several of them with commas, "{a,b,c},...".
std::string choices_text(const std::string& names, bool is_list);

/// Returns the commands of `program` with their options as JSON. scripts/manual reads it. `runners`: the commands whose
/// arguments end with a program and its arguments.
std::string definitions_of(const CLI::App& program, const std::vector<const CLI::App*>& runners);

}  // namespace nupa::cli
