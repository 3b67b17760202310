// SPDX-License-Identifier: Apache-2.0
#include "ccl/channel/topology.h"

#include <algorithm>
#include <cstdint>

namespace nupa::ccl {

uint32_t Topology::fewest() const {
  size_t fewest = SIZE_MAX;
  for (const auto& one : memories) fewest = std::min(fewest, one.size());
  return static_cast<uint32_t>(fewest);
}

uint32_t Topology::most() const {
  size_t most = 0;
  for (const auto& one : memories) most = std::max(most, one.size());
  return static_cast<uint32_t>(most);
}

}  // namespace nupa::ccl
