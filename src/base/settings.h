// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Settings from environment variables: one reader for all of NUPA, so that a boolean has the same spellings everywhere
/// and a wrong value is reported in the same words. base/settings_table.h has the names, ranges, choices and defaults.
/// A NUPA_ variable that is not in it, or has another kind, cannot be read: the call does not compile.
#include <nupa/export.h>
#include <nupa/result.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/settings_table.h"

namespace nupa::base {

// Not defined and not constexpr: a call of it in a constant expression is a compile error that shows its name.
void variable_is_not_in_settings_table();
void variable_has_another_kind_in_settings_table();

/// The name of a variable: one of kSettings, or one of another program (RANK, HOME, LD_LIBRARY_PATH).
class Variable {
 public:
  consteval Variable(const char* name) : name_(name) {
    const std::string_view text = name;
    const bool is_ours = text.starts_with("NUPA_") || text.starts_with("VERBS_");
    if (is_ours && !is_setting(text)) variable_is_not_in_settings_table();
  }
  explicit constexpr Variable(const Setting& one) : name_(one.name) {}

  constexpr const char* name() const { return name_; }

 private:
  const char* name_;
};

/// A variable of one kind that has a default.
template <Kind kKind>
class VariableOf {
 public:
  consteval VariableOf(const char* name) : setting_(find_setting(name)) {
    if (!is_setting(name)) variable_is_not_in_settings_table();
    if (setting_->kind != kKind || setting_->usual.empty()) variable_has_another_kind_in_settings_table();
  }
  explicit constexpr VariableOf(const Setting& one) : setting_(&one) {}

  constexpr const Setting& operator*() const { return *setting_; }

 private:
  const Setting* setting_;
};

/// The variable's value, or nullptr. Under libnupa_sockets.so also a variable that the process was started with and has
/// removed since: programs that do not use NUPA themselves (nginx) keep only the variables they know. The text stays
/// valid as getenv()'s does. Variables of other programs have their present value. Any thread.
NUPA_EXPORT const char* setting(Variable variable);

/// The same, but nullptr also for an empty variable: `NAME= program` asks for the default.
NUPA_EXPORT const char* text_setting(Variable variable);

// Each function returns the default for a variable that is not set or empty. A wrong value is EINVAL, with a text that
// names the variable, its value and the accepted values: "NUPA_ROCE_ICRC=maybe: expected on or off (also yes or no,
// true or false, 1 or 0)". Any thread.

/// True: on, yes, true or 1. False: off, no, false or 0.
NUPA_EXPORT Result<bool> boolean_setting(VariableOf<Kind::kBoolean> variable);

/// A whole number in decimal digits, in the range of the table.
NUPA_EXPORT Result<uint64_t> number_setting(VariableOf<Kind::kNumber> variable);

/// The index of the value in the choices of the table.
NUPA_EXPORT Result<size_t> word_setting(VariableOf<Kind::kWord> variable);

/// Checks the variable's value by its kind. Text and folders are left to their readers.
NUPA_EXPORT Result<void> check_setting(const Setting& one);

/// The accepted values, in words without markup: "a whole number from 1 to 4". For booleans, numbers and words.
NUPA_EXPORT std::string accepted_values(const Setting& one);

}  // namespace nupa::base
