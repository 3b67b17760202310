#pragma once
#include <cstring>

#include "ccl/task.h"

namespace nupa::ccl {

/// out = sources[0] op sources[1] op ..., by the reducer's operator or function, as reduce() says. `out` may be one of
/// them. Sources have their factors.
void combine(const Reducer& reducer, void* out, const Source* sources, uint32_t count, size_t elements);

}  // namespace nupa::ccl
