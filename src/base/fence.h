// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>

#ifndef NUPA_UPDATES_ARE_FENCES
#ifdef __x86_64__
#define NUPA_UPDATES_ARE_FENCES true
#else
#define NUPA_UPDATES_ARE_FENCES false
#endif
#endif

namespace nupa::base {

/// A full barrier behind a sequentially consistent update or store (Linux: smp_mb__after_atomic). In C++ such an update
/// orders sequentially consistent accesses only. On x86 it is a full barrier by itself, so nothing is emitted.
inline void fence_after_update() {
  if (!NUPA_UPDATES_ARE_FENCES) std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace nupa::base
