#pragma once
/// How a rank reaches others: what it tells of itself (RankCard), the mailbox and the thread that a process's
/// communicators share (Endpoint), the links of one communicator, made when they are first wanted (Links), and memory
/// that other ranks map or read (Allocations, WindowCache, ProcessReads). Communicators use it. Any thread, where a
/// class does not say otherwise.
#include "ccl/connect/endpoint.h"
#include "ccl/connect/links.h"
#include "ccl/connect/process_reads.h"
#include "ccl/connect/topology_of.h"
#include "ccl/connect/window_cache.h"
