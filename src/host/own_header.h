#pragma once
#include <nupa/types.h>

#include <cstdint>
#include <vector>

#include "shm/layout.h"

namespace nupa::host {

/// Writes to the header of this process's segment what others read about the process itself: who it is, since when it
/// runs, its command, and the GID table of each of its devices. Before others can find it.
void describe_self(uint64_t instance, const std::vector<std::vector<Gid>>& gids, shm::SegmentHeader* header);

}  // namespace nupa::host
