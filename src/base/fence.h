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

// Memory of programs is copied by plain loads and stores. x86 keeps loads in order and stores in order, so there these
// two only bind the compiler. Both are the compiler's builtins, which the model checker does not see.

/// Call it after reads of a program's memory for a request: requests are executed in order, so no later request reads
/// older values, and none writes before these reads (IBTA 9.5).
inline void fence_after_reads() { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
/// Call it before writes to a program's memory: all earlier writes become visible before them.
inline void fence_before_writes() { __atomic_thread_fence(__ATOMIC_RELEASE); }

/// Call it before a FLUSH is answered: stores that bypass the caches are complete, too.
inline void fence_before_answer() { std::atomic_thread_fence(std::memory_order_seq_cst); }

/// True if the stores of one copy become visible in the order in which the processor executes them.
#ifdef __x86_64__
inline constexpr bool kStoresInOrder = true;
#else
inline constexpr bool kStoresInOrder = false;
#endif

}  // namespace nupa::base
