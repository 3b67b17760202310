#include <algorithm>
#include <cerrno>
#include <vector>

#include "ccl/lane/algorithms.h"
#include "ccl/lane/transfer.h"

namespace nupa::ccl::lanes {

Steps all_to_all_pairwise(LaneGroup& group, ExchangeTask task) {
  const uint32_t self = group.rank();
  const uint32_t ranks = group.ranks();
  std::vector<std::byte> copy;
  const void* in = task.in;
  if (task.in == task.out) {
    // What comes would be put over what has not been sent.
    size_t bytes = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank)
      bytes = std::max(bytes, task.in_blocks.offset(rank) + task.in_blocks.length(rank));
    copy.assign(static_cast<const std::byte*>(in), static_cast<const std::byte*>(in) + bytes);
    in = copy.data();
  }
  copy_array(bytes_at(task.out, task.out_blocks.offset(self)), bytes_at(in, task.in_blocks.offset(self)),
             task.in_blocks.length(self));
  Loans loans(group, in == task.in, task.in_blocks.longest(ranks));  // the copy goes where an error ends all
  for (uint32_t distance = 1; distance < ranks; ++distance) {
    const uint32_t to = (self + distance) % ranks;
    const uint32_t from = (self + ranks - distance) % ranks;
    const Flow pair{to,
                    bytes_at(in, task.in_blocks.offset(to)),
                    task.in_blocks.length(to),
                    from,
                    bytes_at(task.out, task.out_blocks.offset(from)),
                    task.out_blocks.length(from),
                    nullptr,
                    false,
                    &loans};
    if (const int error = co_await flow(group, pair); error != 0) co_return error;
  }
  co_return co_await loans.settle();
}

}  // namespace nupa::ccl::lanes
