// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Settings from environment variables: one reader for all of NUPA, so that a boolean has the same spellings everywhere
/// and a wrong value is reported in the same words. docs/reference/environment.md lists the variables.
#include <nupa/export.h>
#include <nupa/result.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace nupa::base {

/// The variable's value, or nullptr. Under libnupa_sockets.so also a variable that the process was started with and has
/// removed since: programs that do not use NUPA themselves (nginx) keep only the variables they know. The text stays
/// valid as getenv()'s does. Variables of other programs (RANK, HOME, LD_LIBRARY_PATH) are read by this function, too;
/// these have their present value. Any thread.
NUPA_EXPORT const char* setting(const char* name);

/// The same, but nullptr also for an empty variable: `NAME= program` asks for the default.
NUPA_EXPORT const char* text_setting(const char* name);

// Each function returns `usual` for a variable that is not set or empty. A wrong value is EINVAL, with a text that
// names the variable, its value and the accepted values: "NUPA_ROCE_ICRC=maybe: expected on or off (also yes or no,
// true or false, 1 or 0)". Any thread.

/// True: on, yes, true or 1. False: off, no, false or 0.
NUPA_EXPORT Result<bool> boolean_setting(const char* name, bool usual);

/// A whole number in decimal digits, from `least` to `most`.
NUPA_EXPORT Result<uint64_t> number_setting(const char* name, uint64_t usual, uint64_t least, uint64_t most);

/// The index of the value in `words`.
NUPA_EXPORT Result<size_t> word_setting(const char* name, size_t usual, std::span<const std::string_view> words);
inline Result<size_t> word_setting(const char* name, size_t usual, std::initializer_list<std::string_view> words) {
  return word_setting(name, usual, std::span<const std::string_view>(words.begin(), words.size()));
}

}  // namespace nupa::base
