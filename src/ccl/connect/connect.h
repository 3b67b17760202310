// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How a rank reaches others. PeerInfo is its peer info. Endpoint has the mailbox and the thread that all communicators
/// of a process share. Links connects the ranks of one communicator when they first need it. Allocations,
/// MappedRegionCache and CmaReads are for memory that other ranks map or read. Communicators use this folder.
/// Thread-safe, unless a class states otherwise.
#include "ccl/connect/endpoint.h"
#include "ccl/connect/links.h"
#include "ccl/connect/cma_reads.h"
#include "ccl/connect/topology_of.h"
#include "ccl/connect/mapped_region_cache.h"
