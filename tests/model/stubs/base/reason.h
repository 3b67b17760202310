// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Found instead of src/base/reason.h by code that is checked in tests/model: nobody reads reasons here.

namespace nupa::base {

template <class... Parts>
int reject(int code, const Parts&...) {
  return code;
}

}  // namespace nupa::base
