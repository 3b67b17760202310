/// reduce_scatter of two levels: ranks of the same index in their nodes exchange what their nodes have together. Träff
/// and Hunold, "Decomposing MPI collectives for exploiting multi-lane communication" (2020).
#include "ccl/algorithms/hierarchical/parts.h"

namespace nupa::ccl::two_level {

/// Within a memory each rank gets what there is of the blocks of its column, a memory's blocks after the other's.
Steps reduce_scatter(TwoLevelGroup& group, const Call& call) {
  const size_t block = call.bytes();
  std::vector<std::byte> sums(group.memories() * block);
  Call within = part_of(call, Operation::kReduceScatter);
  for (uint32_t memory = 0; memory < group.memories(); ++memory) {
    within.in = bytes_at(call.in, group.first_of(memory) * block);
    within.out = sums.data() + memory * block;
    if (const int error = co_await group.run_within(within); error != 0) co_return error;
  }
  Call between = second_part_of(call, Operation::kReduceScatter);
  between.in = sums.data();
  if (const int error = co_await group.run_between(between); error != 0) co_return error;
  lanes::end_with(call.reducer, call.out, call.elements);
  co_return 0;
}

}  // namespace nupa::ccl::two_level
