// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The algorithms of all collectives. Each collective has a folder and each algorithm a file, which begins with its
/// paper. Algorithms are coroutines `CollectiveTask f(Group&, const Call&)`; the group and the call must stay until the
/// coroutine is done. Only the planner, which lists them, and the communicator start them. The thread that has the
/// communicator's turn runs them. shm.h: among ranks that map each other's arenas. messages.h: by messages between any
/// ranks. hierarchical.h: both.
#include "ccl/algorithms/hierarchical.h"
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/shm.h"
