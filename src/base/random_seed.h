// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/random.h>

#include <cstdint>

#include "base/clock.h"

namespace nupa::base {

/// Returns a number that another process does not have: from the kernel, or the processor's clock if it gives none. Not
/// for secrets. Cheaper than a std::random_device, which reads the processor's abilities and opens files.
inline uint64_t random_seed() {
  uint64_t seed;
  return getrandom(&seed, sizeof seed, 0) == sizeof seed ? seed : ticks();
}

}  // namespace nupa::base
