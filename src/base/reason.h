// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cerrno>
#include <initializer_list>

#include "nupa/reason.h"
#include "nupa/result.h"

namespace nupa::base {

/// Keeps the reason for take_reason() of this thread, unless nobody wants one. Returns the code.
[[gnu::cold, gnu::noinline]] NUPA_EXPORT int note_reason(int code, std::initializer_list<TextPart> parts) noexcept;

/// For functions that return an errno value: `return reject(EINVAL, "port number ", port, " (the device has port
/// 1)");`. The text names the value and the rule. Any thread.
template <class... Parts>
[[gnu::cold]] int reject(int code, const Parts&... parts) noexcept {
  return note_reason(code, {TextPart(parts)...});
}

}  // namespace nupa::base
