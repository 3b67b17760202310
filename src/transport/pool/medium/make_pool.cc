// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/make_pool.h"

#include "transport/pool/medium/medium_policy.h"
#include "transport/pool/medium/open_pool.h"

namespace nupa::pool {

Result<std::unique_ptr<Pool>> make_pool(const Spec& spec, PoolClock clock) {
  auto memory = PoolMemory::open(spec);
  if (!memory) return tl::unexpected(memory.error());
  const auto geometry = read_geometry(**memory);
  if (!geometry) return tl::unexpected(geometry.error());
  if (spec.host >= geometry->hosts())
    return fail(EINVAL, spec.medium(), ": host=", spec.host, ": the pool was formatted for hosts 0 to ",
                geometry->hosts() - 1);
  const MediumPolicy policy = policy_of(**memory);
  return std::make_unique<OpenPool<MediumPolicy>>(std::move(*memory), *geometry, policy, std::move(clock));
}

}  // namespace nupa::pool
