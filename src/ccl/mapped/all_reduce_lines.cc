#include "ccl/mapped/all_reduce.h"

namespace nupa::ccl {

Steps all_reduce_lines(MappedGroup& group, ReduceTask task) {
  const uint32_t step = group.begin(1) + 1;
  const uint32_t turn = group.next_turn();
  for (uint32_t i = 1; i < group.ranks(); ++i)
    group.write_line((group.rank() + i) % group.ranks(), turn, task.in, task.bytes(), step);
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (rank == group.rank()) continue;
    const int error = co_await Wait{&group.line_from(rank, turn).step, step};
    if (error != 0) co_return error;
  }
  reduce_ranks(task.reduction, task.out, group.ranks(), task.elements, [&](uint32_t rank) -> const void* {
    return rank == group.rank() ? task.in : group.line_from(rank, turn).payload;
  });
  co_return 0;
}

}  // namespace nupa::ccl
