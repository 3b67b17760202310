// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>

#include "core/seam/transport.h"

namespace nupa::pool {

/// The transport for the pool that NUPA_POOL or /etc/nupa/pool.json names. Without one it takes no part in anything.
/// EINVAL: the text of one of them is wrong.
Result<std::unique_ptr<core::Transport>> create();
/// The address of this host in the pool; none: no pool is configured, or it cannot be opened.
std::optional<Gid> own_address();

}  // namespace nupa::pool
