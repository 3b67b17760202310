// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdarg>

namespace nupa::base {

/// Severities. NUPA_LOG selects one, and all before it are printed, too.
enum class LogLevel : int { kError, kWarn, kInfo, kDebug };

/// True if a message of this level would be printed. NUPA_LOG = error, warn (the default), info or debug.
/// Any thread.
bool log_enabled(LogLevel level);

/// Prints one line "nupa[pid] level: text" to standard error in a single write. Any thread, but not on the data path.
void log(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));

/// The same whatever NUPA_LOG is.
void print(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace nupa::base

#define NUPA_ERROR(...) ::nupa::base::log(::nupa::base::LogLevel::kError, __VA_ARGS__)
#define NUPA_WARN(...) ::nupa::base::log(::nupa::base::LogLevel::kWarn, __VA_ARGS__)
#define NUPA_INFO(...)                                               \
  do {                                                               \
    if (::nupa::base::log_enabled(::nupa::base::LogLevel::kInfo))    \
      ::nupa::base::log(::nupa::base::LogLevel::kInfo, __VA_ARGS__); \
  } while (0)
#define NUPA_DEBUG(...)                                               \
  do {                                                                \
    if (::nupa::base::log_enabled(::nupa::base::LogLevel::kDebug))    \
      ::nupa::base::log(::nupa::base::LogLevel::kDebug, __VA_ARGS__); \
  } while (0)
