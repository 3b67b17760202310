// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Parts of the algorithms among ranks that map each other's memory: flags, shared arrays, and the inline fast path of
/// small calls. One thread at a time uses a group.
#include "ccl/algorithms/shm/inline_path.h"
#include "ccl/algorithms/shm/inline_call.h"
#include "ccl/algorithms/shm/parts.h"
#include "ccl/algorithms/shm/shared_arrays.h"
