// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/create.h"

#include <cerrno>

#include "transport/pool/pool_transport.h"

namespace nupa::pool {
namespace {

Result<std::unique_ptr<Pool>> open_configured() {
  return fail(ENOENT, "no pool: set NUPA_POOL, or write /etc/nupa/pool.json");
}

}  // namespace

Result<std::unique_ptr<core::Transport>> create() { return std::make_unique<PoolTransport>(&open_configured); }

std::optional<Gid> own_address() { return std::nullopt; }

}  // namespace nupa::pool
