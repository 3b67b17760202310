#include <cerrno>
#include <vector>

#include "ccl/lane/algorithms.h"
#include "ccl/lane/folded.h"
#include "ccl/lane/transfer.h"

namespace nupa::ccl::lanes {

Steps all_reduce_doubling(LaneGroup& group, ReduceTask task) {
  auto* const sum = static_cast<std::byte*>(task.out);
  const Reducer reducer = partial(task.reducer);
  const Folded folded(group);
  begin_with(task.reducer, sum, task.in, task.elements);
  if (const int error = co_await fold(group, folded, sum, task.bytes(), reducer); error != 0) co_return error;
  for (uint32_t distance = 1; folded.place != kNoRank && distance < folded.power; distance *= 2) {
    const uint32_t other = folded.place ^ distance;
    const uint32_t rank = folded.rank_at(other);
    const Flow both{rank, sum, task.bytes(), rank, sum, task.bytes(), &reducer, other < folded.place};
    if (const int error = co_await flow(group, both); error != 0) co_return error;
  }
  if (folded.place != kNoRank) end_with(task.reducer, sum, task.elements);
  co_return co_await unfold(group, folded, sum, task.bytes());
}

/// Hillis and Steele, "Data parallel algorithms": after round k a rank has the sum of itself and the 2^k - 1 before it.
Steps scan_doubling(LaneGroup& group, ReduceTask task) {
  const Reducer reducer = partial(task.reducer);
  const uint32_t rank = group.rank();
  const size_t bytes = task.bytes();
  std::vector<std::byte> sum(bytes);     // of this rank and those before it
  std::vector<std::byte> before(bytes);  // exscan: of those before it alone
  bool has_before = false;
  begin_with(task.reducer, sum.data(), task.in, task.elements);
  for (uint32_t distance = 1; distance < group.ranks() && bytes > 0; distance *= 2) {
    std::vector<std::byte> got(rank >= distance ? bytes : 0);
    const uint32_t to = rank + distance < group.ranks() ? rank + distance : kNoRank;
    const uint32_t from = rank >= distance ? rank - distance : kNoRank;
    if (to == kNoRank && from == kNoRank) continue;
    const Flow along{to == kNoRank ? from : to,   sum.data(), to == kNoRank ? 0 : bytes,
                     from == kNoRank ? to : from, got.data(), got.size()};
    if (const int error = co_await flow(group, along); error != 0) co_return error;
    if (from == kNoRank) continue;
    const Source sources[] = {{got.data(), nullptr}, {sum.data(), nullptr}};
    combine(reducer, sum.data(), sources, 2, task.elements);
    if (!task.exclusive) continue;
    const Source both[] = {{got.data(), nullptr}, {before.data(), nullptr}};
    combine(reducer, before.data(), both, has_before ? 2 : 1, task.elements);
    has_before = true;
  }
  if (!task.exclusive)
    copy_array(task.out, sum.data(), bytes);
  else if (has_before)
    copy_array(task.out, before.data(), bytes);
  co_return 0;
}

}  // namespace nupa::ccl::lanes
