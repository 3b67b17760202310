// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <memory>

#include "transport/pool/medium/pool.h"
#include "transport/pool/medium/pool_clock.h"
#include "transport/pool/medium/spec.h"

namespace nupa::pool {

/// Opens a pool that `nupa pool format` has made. EINVAL: the medium holds none, or has no such host. ENOENT, EACCES
/// and others: the medium cannot be opened.
Result<std::unique_ptr<Pool>> make_pool(const Spec& spec, PoolClock clock = {});

}  // namespace nupa::pool
