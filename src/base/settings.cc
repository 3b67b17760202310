// SPDX-License-Identifier: Apache-2.0
#include "base/settings.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace nupa::base {
namespace {

/// "NAME=value" of each variable that NUPA reads, as the process was started. Empty for a program that uses NUPA
/// itself: if that program removes a variable, it does so on purpose.
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

tl::unexpected<Error> wrong(const char* name, const char* text, const std::string& accepted) {
  return fail(EINVAL, name, "=", text, ": expected ", accepted);
}

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

const char* text_setting(const char* name) {
  const char* const text = setting(name);
  return text == nullptr || *text == '\0' ? nullptr : text;
}

Result<bool> boolean_setting(const char* name, bool usual) {
  const char* const text = text_setting(name);
  if (text == nullptr) return usual;
  const std::string_view value = text;
  if (value == "on" || value == "yes" || value == "true" || value == "1") return true;
  if (value == "off" || value == "no" || value == "false" || value == "0") return false;
  return wrong(name, text, "on or off (also yes or no, true or false, 1 or 0)");
}

Result<uint64_t> number_setting(const char* name, uint64_t usual, uint64_t least, uint64_t most) {
  const char* const text = text_setting(name);
  if (text == nullptr) return usual;
  const std::string_view value = text;
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.begin(), value.end(), number);
  if (error == std::errc() && end == value.end() && number >= least && number <= most) return number;
  return wrong(name, text, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
}

Result<size_t> word_setting(const char* name, size_t usual, std::span<const std::string_view> words) {
  const char* const text = text_setting(name);
  if (text == nullptr) return usual;
  const auto found = std::find(words.begin(), words.end(), std::string_view(text));
  if (found != words.end()) return static_cast<size_t>(std::distance(words.begin(), found));
  std::string accepted;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i != 0) accepted += i + 1 == words.size() ? " or " : ", ";
    accepted += words[i];
  }
  return wrong(name, text, accepted);
}

}  // namespace nupa::base
