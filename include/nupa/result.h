#pragma once
#include <tl/expected.hpp>

namespace nupa {

/// Why a call failed: an errno value and one constant sentence for a person.
/// `what` points to static storage and is never null.
struct Error {
  int code;
  const char* what;
};

/// A value, or the Error that stood in its way.
template <class T>
using Result = tl::expected<T, Error>;

/// Builds the failed side of a Result.
inline tl::unexpected<Error> fail(int code, const char* what) { return tl::unexpected<Error>(Error{code, what}); }

}  // namespace nupa
