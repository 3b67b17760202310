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

constexpr std::string_view kNames[] = {"error", "warn", "info", "debug"};

LogLevel threshold() {
  static const LogLevel level = [] {
    const auto wanted = word_setting("NUPA_LOG", static_cast<size_t>(LogLevel::kWarn), kNames);
    if (wanted) return static_cast<LogLevel>(*wanted);
    std::fprintf(stderr, "nupa[%d] warn: %s; using warn\n", static_cast<int>(getpid()), wanted.error().what());
    return LogLevel::kWarn;
  }();
  return level;
}

}  // namespace

bool log_enabled(LogLevel level) { return level <= threshold(); }

void log(LogLevel level, const char* format, ...) {
  if (!log_enabled(level)) return;
  // A log line must not disturb the errno that the caller is about to report.
  const int saved_errno = errno;
  char line[512];
  int used = std::snprintf(line, sizeof line, "nupa[%d] %s: ", static_cast<int>(getpid()),
                           kNames[static_cast<int>(level)].data());
  va_list arguments;
  va_start(arguments, format);
  const int body = std::vsnprintf(line + used, sizeof line - static_cast<size_t>(used) - 1, format, arguments);
  va_end(arguments);
  used = std::min(used + std::max(body, 0), static_cast<int>(sizeof line) - 2);
  line[used++] = '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, static_cast<size_t>(used));
  errno = saved_errno;
}

}  // namespace nupa::base
