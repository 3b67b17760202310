#pragma once
#include <nupa/result.h>
#include <string>
#include <utility>

namespace nupa::ccl {

using Fault = Error;

template <class T>
using Outcome = Result<T>;

inline tl::unexpected<Fault> fault(int code, std::string text) { return fail(code, std::move(text)); }

}  // namespace nupa::ccl
