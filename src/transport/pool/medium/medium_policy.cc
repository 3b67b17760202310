// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/medium_policy.h"

#include <bit>

namespace nupa::pool {

MediumPolicy policy_of(const PoolMemory& memory) {
  switch (memory.caches()) {
    case Caches::kFlushed:
      return Flushed<HardwareCpu>();
    case Caches::kUncached:
      return Uncached<HardwareCpu>();
    case Caches::kTorn:
      return Flushed<TornCpu>(TornCpu(memory.torn()));
    case Caches::kCoherent:
      break;
  }
  return Coherent();
}

Result<Geometry> read_geometry(const PoolMemory& memory) {
  MediumPolicy policy = policy_of(memory);
  const Line* const line = memory.lines();
  HeaderLine header{.magic = 0};
  if (policy.poll(line) == kMagic) header = std::bit_cast<HeaderLine>(policy.read(line));
  return check_header(header, memory.bytes(), memory.spec().medium().c_str());
}

}  // namespace nupa::pool
