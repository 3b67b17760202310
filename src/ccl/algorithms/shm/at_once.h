#pragma once
/// The same as the algorithms by lines and marks, step for step, for a rank that has nothing else to do meanwhile: for
/// the time of two cache lines' way nothing may stand between a call and them.
#include "ccl/algorithms/shm/line_call.h"
#include "ccl/channel/shm_group.h"

namespace nupa::ccl::mapped {

/// What has begun, and is to be waited for.
struct Exchange {
  uint32_t step;
  uint32_t turn;  ///< of kBarrier there is none
  Operation operation;
  uint32_t root;
};

/// False: what stood in the line may still be read, and nothing has begun.
bool may_begin(MappedGroup& group, const LineCall& call);
Exchange begin_line(MappedGroup& group, const LineCall& call);
/// Whether all ranks have come that this one needs, after a few looks.
bool all_came(MappedGroup& group, const Exchange& exchange);
/// Until they have.
Steps until_all_came(MappedGroup& group, Exchange exchange);
/// When they have.
void end_line(MappedGroup& group, const LineCall& call, const Exchange& exchange);

}  // namespace nupa::ccl::mapped
