// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Collectives as coroutines: CollectiveTask, the coroutine type of algorithms, the pool of their frames, and how a
/// rank waits for words of memory that other ranks count up (progress/words.h). Algorithms are written with
/// CollectiveTask and Wait; a communicator and its messages run them. One thread at a time runs a coroutine and uses
/// its pool.
#include "ccl/coroutine/collective_task.h"
#include "ccl/coroutine/waiter.h"
