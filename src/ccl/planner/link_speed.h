#pragma once
#include "ccl/channel/lane_group.h"

namespace nupa::ccl::lanes {

/// How long messages between neighbours take here, while all ranks send: the slowest that any rank has seen. Takes some
/// twenty messages' time and that of a MiB. All ranks get the same.
Steps measure(LaneGroup& group, LinkSpeed* speed);

}  // namespace nupa::ccl::lanes
