// SPDX-License-Identifier: Apache-2.0
#include "core/seam/qp_context.h"

#include "base/fence.h"
#include "base/memory_fault.h"
#include "base/racing_copy.h"

namespace nupa::core {

WcStatus QpContext::run_atomic(Atomic operation, uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t* operand,
                               uint64_t swap) {
  const uint32_t rights = operation == Atomic::kWrite ? access::kRemoteWrite : access::kRemoteAtomic;
  std::byte* at = reach(srqn, rkey, address, sizeof *operand, rights);
  if (at == nullptr) return WcStatus::kRemAccessErr;
  // A key whose first address is even may map to an odd address of the process, where the processor has no atomics.
  if (reinterpret_cast<uintptr_t>(at) % sizeof *operand != 0) return WcStatus::kRemInvReqErr;
  auto* word = reinterpret_cast<uint64_t*>(at);
  const bool done = base::try_access(at, sizeof *word, [&] {
    base::fault_before_atomic(word);
    switch (operation) {
      case Atomic::kCompareSwap:
        __atomic_compare_exchange_n(word, operand, swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        break;
      case Atomic::kFetchAdd:
        *operand = __atomic_fetch_add(word, *operand, __ATOMIC_SEQ_CST);
        break;
      case Atomic::kWrite:
        __atomic_store_n(word, *operand, __ATOMIC_SEQ_CST);
        break;
    }
    // The accesses of the next request come after it.
    base::fence_after_update();
  });
  return done ? WcStatus::kSuccess : WcStatus::kRemOpErr;
}

}  // namespace nupa::core
