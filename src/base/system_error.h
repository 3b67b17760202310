// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The failed side of a Result for a system call.
#include <nupa/result.h>

#include <cstring>

namespace nupa::base {

/// Joins the parts of the text, and adds the system's text of the errno value: "cannot open FILE: No such file or
/// directory".
template <class... Parts>
tl::unexpected<Error> fail_call(int error, const Parts&... parts) {
  return fail(error,
              {TextPart(parts)..., TextPart(std::string_view(": ")), TextPart(std::string_view(std::strerror(error)))});
}

}  // namespace nupa::base
