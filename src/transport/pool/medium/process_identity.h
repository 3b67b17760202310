// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "transport/pool/medium/layout.h"

namespace nupa::pool {

/// A random number, never 0, also not in its high half.
uint64_t random_key();
/// The process line of this process.
ProcessLine describe_process(uint64_t instance, uint64_t incarnation);

}  // namespace nupa::pool
