#pragma once
/// What ranks see of each other, and the groups that algorithms run on. Ranks of one host map each other's arenas
/// (MappedGroup); any two ranks have lanes, by memory or by RDMA WRITE, which carry messages in pieces (LaneGroup); a
/// TwoLevelGroup is both. Algorithms use the groups, `p2p` uses the lanes, `connect` makes both. One thread at a time
/// uses a group; what RDMA brings is noted by whichever thread polls.
#include "ccl/channel/arena.h"
#include "ccl/channel/hierarchical_group.h"
#include "ccl/channel/lane.h"
#include "ccl/channel/lane_group.h"
#include "ccl/channel/mapped_regions.h"
#include "ccl/channel/peer_reads.h"
#include "ccl/channel/rdma_port.h"
#include "ccl/channel/shm_group.h"
#include "ccl/channel/shm_lane.h"
#include "ccl/channel/topology.h"
