// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The memory that the processes of a host share: one file for each process, with the tables of its objects and the
/// rings of its queues, which peers map and write to. It is an interface between processes, and layout.h has its
/// version. The core owns the objects, the shm transport executes work requests on a peer's tables, and host passes the
/// file to the peer. Each table and ring documents who may write to it.
#include "shm/completion_ring.h"
#include "shm/layout.h"
#include "shm/port_counts.h"
#include "shm/qp_banks.h"
#include "shm/receive_ring.h"
#include "shm/segment.h"
#include "shm/send_lock.h"
