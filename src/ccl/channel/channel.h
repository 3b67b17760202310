// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The memory and the messages between ranks, and the groups that algorithms run on. Ranks of one host map each other's
/// arenas (ShmGroup). Any two ranks have channels, through memory or by RDMA WRITE, which carry messages in
/// fragments (ChannelGroup). A HierarchicalGroup has both. Algorithms use the groups, `p2p` uses the channels, and
/// `connect` creates both. One thread at a time uses a group; any thread may poll for RDMA completions and record them.
#include "ccl/channel/arena.h"
#include "ccl/channel/hierarchical_group.h"
#include "ccl/channel/message_channel.h"
#include "ccl/channel/channel_group.h"
#include "ccl/channel/mapped_regions.h"
#include "ccl/channel/peer_reads.h"
#include "ccl/channel/rdma_port.h"
#include "ccl/channel/shm_group.h"
#include "ccl/channel/shm_channel.h"
#include "ccl/channel/topology.h"
