// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The inline fast path: the same steps as the algorithms by flag lines and flags, for a rank without other operations.
/// Such a call takes the time of two cache-line transfers, so nothing may delay them.
#include "ccl/algorithms/shm/line_call.h"
#include "ccl/channel/shm_group.h"

namespace nupa::ccl::mapped {

/// An operation that has begun and waits for other ranks.
struct Exchange {
  uint32_t step;
  uint32_t turn;  ///< unused for kBarrier
  Operation operation;
  uint32_t root;
};

/// Returns false, and begins nothing, if other ranks may still read the flag line.
bool may_begin(MappedGroup& group, const LineCall& call);
Exchange begin_line(MappedGroup& group, const LineCall& call);
/// Looks a few times. Returns whether all ranks that this one needs have arrived.
bool all_came(MappedGroup& group, const Exchange& exchange);
/// Waits until they have arrived.
Steps until_all_came(MappedGroup& group, Exchange exchange);
/// Completes the operation after they have arrived.
void end_line(MappedGroup& group, const LineCall& call, const Exchange& exchange);

}  // namespace nupa::ccl::mapped
