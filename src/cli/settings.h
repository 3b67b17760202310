// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The variables of base/settings_table.h, as the program checks and shows them.
#include <string>
#include <string_view>
#include <vector>

namespace nupa::cli {

/// The purpose of a check.
enum class CheckedFor {
  kThisMachine,  ///< `nupa doctor`: interfaces have to exist
  kProgram,      ///< a program that may run elsewhere: in another network namespace, an interface may exist
};

/// Returns the errors of all variables with wrong values, with "; " between two; empty: there is none. `replaced`:
/// names that the program gets with other values, and that are not checked.
std::string wrong_settings(CheckedFor checked_for, const std::vector<std::string_view>& replaced = {});

/// The lines about variables in `nupa --help`.
std::string help_of_settings();

}  // namespace nupa::cli
