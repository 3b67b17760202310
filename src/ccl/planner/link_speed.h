// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ccl/channel/channel_group.h"

namespace nupa::ccl::messages {

/// Measures how long messages between neighbours take while all ranks send. All ranks get the same result, which is the
/// slowest one of any rank. It takes the time of about 40 messages and of 768 KiB.
CollectiveTask measure(ChannelGroup& group, LinkSpeed* speed);

}  // namespace nupa::ccl::messages
