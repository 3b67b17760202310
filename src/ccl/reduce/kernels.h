#pragma once
#include "ccl/reduce/reduce.h"

namespace nupa::ccl {

/// As reduce(), in the processor's usual mode of rounding, for one or more sources and elements.
using Kernel = void (*)(const Reduction& reduction, void* result, const Source* sources, uint32_t count,
                        size_t elements);

/// The best of this processor, or of what hwy::SetSupportedTargetsForTest() leaves of it.
Kernel kernel();

}  // namespace nupa::ccl
