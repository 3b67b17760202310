// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The inline fast path: the same steps as the algorithms by flag lines and flags, for a rank without other operations.
/// Such a call takes the time of two cache-line transfers, so nothing may delay them.
#include "ccl/algorithms/shm/inline_call.h"
#include "ccl/channel/shm_group.h"

namespace nupa::ccl::shm {

/// An operation that has begun and waits for other ranks.
struct Exchange {
  uint32_t step;
  uint32_t turn;  ///< unused for kBarrier
  Operation operation;
  uint32_t root;
};

/// Returns false, and begins nothing, if other ranks may still read the flag line.
bool may_begin(ShmGroup& group, const InlineCall& call);
Exchange begin_line(ShmGroup& group, const InlineCall& call);
/// Looks a few times. Returns whether all ranks that this one needs have arrived.
bool all_came(ShmGroup& group, const Exchange& exchange);
/// Waits until they have arrived.
CollectiveTask until_all_came(ShmGroup& group, Exchange exchange);
/// Completes the operation after they have arrived.
void end_line(ShmGroup& group, const InlineCall& call, const Exchange& exchange);

}  // namespace nupa::ccl::shm
