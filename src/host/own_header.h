// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/types.h>

#include <cstdint>
#include <vector>

#include "shm/layout.h"

namespace nupa::host {

/// Writes this process's own data to the header of its segment: its identity, start time and command, and the GID table
/// of each of its devices. Call it before other processes can find the segment.
void describe_self(uint64_t instance, const std::vector<std::vector<Gid>>& gids, shm::SegmentHeader* header);

}  // namespace nupa::host
