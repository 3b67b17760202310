#include "ccl/mapped/algorithms.h"

namespace nupa::ccl::mapped {

Steps barrier(MappedGroup& group) {
  const uint32_t step = group.begin(1) + 1;
  group.tell(step);
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
  group.all_met();
  co_return 0;
}

Steps depart(MappedGroup& group) {
  for (uint32_t rank = 0; rank < group.ranks(); ++rank)
    if (rank != group.rank()) group.leave(rank);
  co_return co_await group.all_left();
}

}  // namespace nupa::ccl::mapped
