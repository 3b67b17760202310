// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/create.h"

#include <cerrno>

#include "transport/pool/medium/make_pool.h"
#include "transport/pool/medium/spec.h"
#include "transport/pool/pool_transport.h"

namespace nupa::pool {
namespace {

Result<std::unique_ptr<Pool>> open_configured() {
  const auto spec = spec_from_environment();
  if (!spec) return tl::unexpected(spec.error());
  if (!*spec) return fail(PoolTransport::kNoPool, "no pool: set NUPA_POOL, or write ", kSpecFile);
  return make_pool(**spec);
}

}  // namespace

Result<std::unique_ptr<core::Transport>> create() {
  if (const auto spec = spec_from_environment(); !spec) return tl::unexpected(spec.error());
  return std::make_unique<PoolTransport>(&open_configured);
}

std::optional<Gid> own_address() {
  const auto spec = spec_from_environment();
  if (!spec || !*spec) return std::nullopt;
  const auto pool = make_pool(**spec);
  if (!pool) return std::nullopt;
  return (*pool)->gid_of((*pool)->host());
}

}  // namespace nupa::pool
