// SPDX-License-Identifier: Apache-2.0
#pragma once
/// From the caches of a medium, which are known when it is open, to the policy, which is a type.

#include <bit>
#include <utility>

#include "transport/pool/medium/cpu.h"
#include "transport/pool/medium/layout.h"
#include "transport/pool/medium/pool_memory.h"

namespace nupa::pool {

/// Calls `use(policy)` with the policy of the medium.
template <class Use>
auto with_policy(const PoolMemory& memory, Use&& use) {
  switch (memory.caches()) {
    case Caches::kFlushed:
      return use(Flushed<HardwareCpu>());
    case Caches::kUncached:
      return use(Uncached<HardwareCpu>());
    case Caches::kTorn:
      return use(Flushed<TornCpu>(TornCpu(memory.torn())));
    case Caches::kCoherent:
      break;
  }
  return use(Coherent());
}

/// Copies the header and checks it. EINVAL: see check_header().
inline Result<Geometry> read_geometry(const PoolMemory& memory) {
  const HeaderLine header = with_policy(memory, [&](auto policy) {
    const Line* const line = memory.lines();
    if (policy.poll(line) != kMagic) return HeaderLine{.magic = 0};
    return std::bit_cast<HeaderLine>(policy.read(line));
  });
  return check_header(header, memory.bytes(), memory.spec().medium().c_str());
}

}  // namespace nupa::pool
