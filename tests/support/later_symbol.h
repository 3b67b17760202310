// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Functions of the drop-in libraries that the headers of Debian 12 do not declare.
#include <dlfcn.h>
#include <gtest/gtest.h>

namespace nupa::test {

/// A function in its version, of the library that has `other`. Null: the library has none, and the test fails.
template <class Function, class Other>
Function* later_symbol(Other* other, const char* name, const char* version) {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(other), &info);
  void* const library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  void* const found = library == nullptr ? nullptr : dlvsym(library, name, version);
  EXPECT_NE(found, nullptr) << name << "@" << version;
  return reinterpret_cast<Function*>(found);
}

}  // namespace nupa::test
