// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <memory>

#include "transport/pool/medium/doorbell.h"
#include "transport/pool/medium/pool_memory.h"

namespace nupa::pool {

/// Opens the doorbell of a medium. ENOTSUP: it has none, or `doorbell=none` is set; the text has the reason. Others: it
/// has one that this process cannot use.
Result<std::unique_ptr<Doorbell>> open_doorbell(const PoolMemory& memory);

}  // namespace nupa::pool
