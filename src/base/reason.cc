// SPDX-License-Identifier: Apache-2.0
#include "base/reason.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"

namespace nupa {
namespace {

/// The longest reason. The rest of a longer one is cut off.
constexpr size_t kMostBytes = 240;
/// The time in which a call that fails again and again is printed once.
constexpr int64_t kPauseNs = 1'000'000'000;

struct Noted {
  int code;  ///< 0: none
  char text[kMostBytes + 1];
};
constinit thread_local Noted t_noted{};

/// The line that this thread printed last.
struct Printed {
  size_t call;  ///< hashes of the texts
  size_t reason;
  int code;
  int64_t at_ns;
};
constinit thread_local Printed t_printed{};

}  // namespace

namespace base {

int note_reason(int code, std::initializer_list<TextPart> parts) noexcept {
  if (!explains()) return code;
  size_t used = 0;
  for (const TextPart& part : parts) {
    const std::string_view text = part.text().substr(0, kMostBytes - used);
    std::copy(text.begin(), text.end(), t_noted.text + used);
    used += text.size();
  }
  t_noted.text[used] = '\0';
  t_noted.code = code;
  return code;
}

}  // namespace base

bool explains() noexcept {
  // A wrong value is reported when a device is opened.
  static const bool wanted =
      base::log_enabled(base::LogLevel::kInfo) || base::boolean_setting("NUPA_EXPLAIN").value_or(false);
  return wanted;
}

const char* take_reason(int code) noexcept {
  const bool fits = t_noted.code == code && code != 0;
  t_noted.code = 0;
  return fits ? t_noted.text : nullptr;
}

void explain(const char* call, int code, const char* reason) noexcept {
  if (!explains()) return;
  const int saved_errno = errno;
  const char* const noted = take_reason(code);
  if (reason == nullptr) reason = noted;
  if (reason == nullptr) reason = "";
  const std::hash<std::string_view> hash;
  const Printed line{hash(call), hash(reason), code, base::now_ns()};
  const bool is_same = line.call == t_printed.call && line.code == t_printed.code && line.reason == t_printed.reason;
  if (!is_same || line.at_ns - t_printed.at_ns >= kPauseNs) {
    t_printed = line;
    base::print(base::LogLevel::kInfo, "%s: %s%s%s", call, std::strerror(code), *reason == '\0' ? "" : ": ", reason);
  }
  errno = saved_errno;
}

}  // namespace nupa
