// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The policies of the media.

#include <nupa/result.h>

#include "transport/pool/medium/any_policy.h"
#include "transport/pool/medium/cpu.h"
#include "transport/pool/medium/layout.h"
#include "transport/pool/medium/pool_memory.h"

namespace nupa::pool {

using MediumPolicy = AnyPolicy<Coherent, Flushed<HardwareCpu>, Uncached<HardwareCpu>, Flushed<TornCpu>>;

/// The policy of a medium.
MediumPolicy policy_of(const PoolMemory& memory);

/// Copies the header and checks it. EINVAL: see check_header().
Result<Geometry> read_geometry(const PoolMemory& memory);

}  // namespace nupa::pool
