#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/settings.h"

namespace nupa::base {
namespace {

constexpr const char* kNames[] = {"error", "warn", "info", "debug"};

LogLevel threshold() {
  static const LogLevel level = [] {
    const char* wanted = base::setting("NUPA_LOG");
    for (int i = 0; wanted != nullptr && i < 4; ++i)
      if (std::string_view(wanted) == kNames[i]) return static_cast<LogLevel>(i);
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
  int used =
      std::snprintf(line, sizeof line, "nupa[%d] %s: ", static_cast<int>(getpid()), kNames[static_cast<int>(level)]);
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
