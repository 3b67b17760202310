// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ccl/reduce/reduce.h"

namespace nupa::ccl {

/// As reduce(), for at least one source and one element, in the default rounding mode.
using Kernel = void (*)(const Reduction& reduction, void* result, const Source* sources, uint32_t count,
                        size_t elements);

/// Returns the best kernel for this processor among those that hwy::SetSupportedTargetsForTest() allows.
Kernel kernel();

}  // namespace nupa::ccl
