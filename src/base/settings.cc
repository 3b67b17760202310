// SPDX-License-Identifier: Apache-2.0
#include "base/settings.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
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

tl::unexpected<Error> wrong(const Setting& one, std::string_view text, const std::string& accepted) {
  return fail(EINVAL, one.name, "=", text, ": expected ", accepted);
}

/// The variable's value, or its default.
std::string_view value_of(const Setting& one) {
  const char* const text = text_setting(Variable(one));
  return text == nullptr ? one.usual : text;
}

constexpr bool is_between(std::string_view text, uint64_t least, uint64_t most) {
  uint64_t number = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return false;
    number = number * 10 + static_cast<uint64_t>(digit - '0');
  }
  return number >= least && number <= most;
}

constexpr bool is_choice(const Setting& one, std::string_view text) {
  for (size_t i = 0; !choice_of(one, i).empty(); ++i)
    if (choice_of(one, i) == text) return true;
  return false;
}

/// True if a default is a value that the variable accepts, and what its kind needs is there.
constexpr bool is_complete(const Setting& one) {
  if (one.group.empty() || one.readers.empty() || one.meaning.empty()) return false;
  switch (one.kind) {
    case Kind::kBoolean:
      return one.usual == "on" || one.usual == "off";
    case Kind::kNumber:
      return one.least < one.most && (one.usual.empty() || is_between(one.usual, one.least, one.most));
    case Kind::kWord:
      return is_choice(one, one.usual);
    default:
      return !one.form.empty();
  }
}

constexpr bool are_complete() {
  for (const Setting& each : kSettings)
    if (!is_complete(each) || find_setting(each.name) != &each) return false;
  return true;
}
static_assert(are_complete(),
              "an entry of kSettings is not complete, its default is not accepted, or it is there twice");

/// EINVAL with the text of `error`, an errno value; nothing for 0.
Result<void> result_of(int error, const Setting& one, const char* path) {
  if (error == 0) return {};
  return fail(EINVAL, one.name, "=", path, ": ", std::strerror(error));
}

bool is_folder(const char* path) {
  struct stat status {};
  return ::stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/// Returns 0, or the errno value of reading the file.
int error_of_reading(const char* path) {
  if (is_folder(path)) return EISDIR;
  return ::access(path, R_OK) == 0 ? 0 : errno;
}

/// Returns 0, or the errno value of creating a file: in the folder `path`, or beside a file of that name.
int error_of_writing(const std::string& path) {
  std::string folder = path;
  if (!is_folder(path.c_str())) {
    const size_t slash = path.rfind('/');
    folder = slash == path.npos ? "." : path.substr(0, slash + 1);
  }
  if (folder.find('%') != folder.npos) return 0;  // stands for a rank, a process or a host
  return ::access(folder.c_str(), W_OK | X_OK) == 0 ? 0 : errno;
}

}  // namespace

const char* setting(Variable variable) {
  const char* const name = variable.name();
  if (const char* now = std::getenv(name); now != nullptr) return now;
  const std::string_view wanted = name;
  for (const std::string& entry : remembered()) {
    if (entry.size() > wanted.size() && entry.starts_with(wanted) && entry[wanted.size()] == '=')
      return entry.c_str() + wanted.size() + 1;
  }
  return nullptr;
}

const char* text_setting(Variable variable) {
  const char* const text = setting(variable);
  return text == nullptr || *text == '\0' ? nullptr : text;
}

Result<bool> boolean_setting(VariableOf<Kind::kBoolean> variable) {
  const std::string_view value = value_of(*variable);
  if (value == "on" || value == "yes" || value == "true" || value == "1") return true;
  if (value == "off" || value == "no" || value == "false" || value == "0") return false;
  return wrong(*variable, value, accepted_values(*variable));
}

Result<uint64_t> number_setting(VariableOf<Kind::kNumber> variable) {
  const Setting& one = *variable;
  const std::string_view value = value_of(one);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.begin(), value.end(), number);
  if (error == std::errc() && end == value.end() && number >= one.least && number <= one.most) return number;
  return wrong(one, value, accepted_values(one));
}

Result<size_t> word_setting(VariableOf<Kind::kWord> variable) {
  const Setting& one = *variable;
  const std::string_view value = value_of(one);
  for (size_t i = 0; !choice_of(one, i).empty(); ++i)
    if (value == choice_of(one, i)) return i;
  return wrong(one, value, accepted_values(one));
}

Result<void> check_setting(const Setting& one) {
  const char* const text = text_setting(Variable(one));
  if (text == nullptr) return {};
  const auto result = [](const auto& read) -> Result<void> {
    if (!read) return tl::unexpected(read.error());
    return {};
  };
  switch (one.kind) {
    case Kind::kBoolean:
      return result(boolean_setting(VariableOf<Kind::kBoolean>(one)));
    case Kind::kNumber:
      return result(number_setting(VariableOf<Kind::kNumber>(one)));
    case Kind::kWord:
      return result(word_setting(VariableOf<Kind::kWord>(one)));
    case Kind::kReadFile:
      return result_of(error_of_reading(text), one, text);
    case Kind::kWrittenFile:
      return result_of(error_of_writing(text), one, text);
    case Kind::kText:
    case Kind::kFolder:
      break;
  }
  return {};
}

std::string accepted_values(const Setting& one) {
  switch (one.kind) {
    case Kind::kBoolean:
      return "on or off (also yes or no, true or false, 1 or 0)";
    case Kind::kNumber:
      return "a whole number from " + std::to_string(one.least) + " to " + std::to_string(one.most);
    default:
      break;
  }
  std::string accepted;
  for (size_t i = 0; !choice_of(one, i).empty(); ++i) {
    if (i != 0) accepted += choice_of(one, i + 1).empty() ? " or " : ", ";
    accepted += choice_of(one, i);
  }
  return accepted;
}

}  // namespace nupa::base
