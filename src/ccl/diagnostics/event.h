// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/ccl.h>

#include <atomic>

namespace nupa::ccl {

/// One operation as it is reported, to a trace and to the program's profiler.
using Event = nupa_ccl_event;

/// True once a trace, a profiler or the checking mode has been turned on; it stays true. If it is false, an operation
/// pays one load.
inline std::atomic<bool> is_anybody_observing{false};
inline bool is_observed() { return __builtin_expect(is_anybody_observing.load(std::memory_order_relaxed), 0); }

}  // namespace nupa::ccl
