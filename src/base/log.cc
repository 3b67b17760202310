// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>

#include "base/settings.h"

namespace nupa::base {
namespace {

constexpr const Setting& kLevels = *find_setting("NUPA_LOG");
static_assert(choice_of(kLevels, static_cast<size_t>(LogLevel::kError)) == "error");
static_assert(choice_of(kLevels, static_cast<size_t>(LogLevel::kWarn)) == "warn");
static_assert(choice_of(kLevels, static_cast<size_t>(LogLevel::kInfo)) == "info");
static_assert(choice_of(kLevels, static_cast<size_t>(LogLevel::kDebug)) == "debug");

/// A wrong level does not end the program, which may have no call that can return the error.
LogLevel threshold() {
  static const LogLevel level = [] {
    const auto wanted = word_setting("NUPA_LOG");
    if (wanted) return static_cast<LogLevel>(*wanted);
    std::fprintf(stderr, "nupa[%d] warn: %s; using warn\n", static_cast<int>(getpid()), wanted.error().what());
    return LogLevel::kWarn;
  }();
  return level;
}

void write_line(LogLevel level, const char* format, va_list arguments) {
  // A log line must not disturb the errno that the caller is about to report.
  const int saved_errno = errno;
  char line[512];
  const std::string_view name = choice_of(kLevels, static_cast<size_t>(level));
  int used = std::snprintf(line, sizeof line, "nupa[%d] %.*s: ", static_cast<int>(getpid()),
                           static_cast<int>(name.size()), name.data());
  const int body = std::vsnprintf(line + used, sizeof line - static_cast<size_t>(used) - 1, format, arguments);
  used = std::min(used + std::max(body, 0), static_cast<int>(sizeof line) - 2);
  line[used++] = '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, static_cast<size_t>(used));
  errno = saved_errno;
}

}  // namespace

bool log_enabled(LogLevel level) { return level <= threshold(); }

void log(LogLevel level, const char* format, ...) {
  if (!log_enabled(level)) return;
  va_list arguments;
  va_start(arguments, format);
  write_line(level, format, arguments);
  va_end(arguments);
}

void print(LogLevel level, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write_line(level, format, arguments);
  va_end(arguments);
}

}  // namespace nupa::base
