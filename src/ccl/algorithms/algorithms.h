#pragma once
/// The algorithms of all collectives: one folder a collective, one file an algorithm, which begins with its paper. They
/// are coroutines `Steps f(Group&, const Call&)`: the group and the call have to stay until the coroutine is done. The
/// planner lists them, and only it and the communicator start them. The thread that has the communicator's turn runs
/// them. shm.h: among ranks that map each other's arenas. messages.h: by messages between any ranks. hierarchical.h:
/// both.
#include "ccl/algorithms/hierarchical.h"
#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/shm.h"
