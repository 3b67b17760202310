#pragma once
/// What processes of a host show each other: one file a process, with the tables of its objects and the rings of
/// its queues, which peers map and write to. It is an interface between processes: layout.h has its version. The
/// core owns the objects, shm carries out work requests on a peer's tables, host hands the file over. Each table
/// and ring says who may write to it.
#include "shm/completion_ring.h"
#include "shm/layout.h"
#include "shm/qp_banks.h"
#include "shm/receive_ring.h"
#include "shm/segment.h"
#include "shm/send_lock.h"
