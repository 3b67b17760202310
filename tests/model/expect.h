// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include "checker.h"

namespace model {

/// The case passes in every execution, on x86 and by the C++ model.
inline void expect_holds(const Build& build) {
  for (const Memory memory : {Memory::kTso, Memory::kCpp}) {
    SCOPED_TRACE(memory == Memory::kTso ? "x86-TSO" : "C++");
    const Result result = explore(memory, build);
    EXPECT_EQ(result.fault, "");
    EXPECT_GT(result.executions, 0u);
  }
}

}  // namespace model
