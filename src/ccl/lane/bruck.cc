#include <algorithm>
#include <cerrno>
#include <vector>

#include "ccl/lane/algorithms.h"
#include "ccl/lane/transfer.h"

namespace nupa::ccl::lanes {

/// Bruck et al., "Efficient algorithms for all-to-all communications": each rank has its own block first; in each round
/// it gets as many more as it has from the one 2^k after it.
Steps all_gather_bruck(LaneGroup& group, GatherTask task) {
  const uint32_t ranks = group.ranks();
  const size_t block = task.bytes;
  std::vector<std::byte> all(ranks * block);
  copy_array(all.data(), task.in, block);
  for (uint32_t have = 1; have < ranks && block > 0; have *= 2) {
    const uint32_t more = std::min(have, ranks - have);
    const Flow round{(group.rank() + ranks - have) % ranks,
                     all.data(),
                     more * block,
                     (group.rank() + have) % ranks,
                     all.data() + have * block,
                     more * block};
    if (const int error = co_await flow(group, round); error != 0) co_return error;
  }
  for (uint32_t i = 0; i < ranks; ++i)
    copy_array(bytes_at(task.out, task.blocks.offset((group.rank() + i) % ranks)), all.data() + i * block, block);
  co_return 0;
}

/// The same paper: block i has i ranks to go; in round k those go 2^k whose distance has that bit.
Steps all_to_all_bruck(LaneGroup& group, ExchangeTask task) {
  const uint32_t ranks = group.ranks();
  const size_t block = task.in_blocks.each;
  std::vector<std::byte> all(ranks * block);
  for (uint32_t i = 0; i < ranks; ++i)
    copy_array(all.data() + i * block, bytes_at(task.in, (group.rank() + i) % ranks * block), block);
  std::vector<std::byte> out;
  std::vector<std::byte> in;
  for (uint32_t bit = 1; bit < ranks && block > 0; bit *= 2) {
    out.clear();
    for (uint32_t i = 0; i < ranks; ++i)
      if ((i & bit) != 0) out.insert(out.end(), all.data() + i * block, all.data() + (i + 1) * block);
    in.resize(out.size());
    const Flow round{(group.rank() + bit) % ranks,         out.data(), out.size(),
                     (group.rank() + ranks - bit) % ranks, in.data(),  in.size()};
    if (const int error = co_await flow(group, round); error != 0) co_return error;
    size_t at = 0;
    for (uint32_t i = 0; i < ranks; ++i)
      if ((i & bit) != 0) copy_array(all.data() + i * block, in.data() + at++ * block, block);
  }
  for (uint32_t i = 0; i < ranks; ++i)
    copy_array(bytes_at(task.out, (group.rank() + ranks - i) % ranks * block), all.data() + i * block, block);
  co_return 0;
}

}  // namespace nupa::ccl::lanes
