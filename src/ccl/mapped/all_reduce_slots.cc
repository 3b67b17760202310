#include "ccl/mapped/all_reduce.h"

namespace nupa::ccl {

Steps all_reduce_slots(MappedGroup& group, ReduceTask task) {
  const uint32_t step = group.begin(1) + 1;
  const uint32_t turn = group.next_turn();
  copy_array(group.slot_in(group.rank(), turn), task.in, task.bytes());
  group.tell(step);
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (rank == group.rank()) continue;
    if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
  }
  reduce_ranks(task.reduction, task.out, group.ranks(), task.elements, [&](uint32_t rank) -> const void* {
    return rank == group.rank() ? task.in : group.slot_in(rank, turn);
  });
  co_return 0;
}

}  // namespace nupa::ccl
