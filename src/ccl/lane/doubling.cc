#include <bit>
#include <cerrno>
#include <vector>

#include "ccl/lane/algorithms.h"
#include "ccl/lane/transfer.h"

namespace nupa::ccl::lanes {
namespace {

/// As many ranks as a power of two has take part; of the first ones each takes one more on its side.
struct Folded {
  uint32_t power;  ///< ranks that take part
  uint32_t extra;  ///< pairs (2i, 2i+1), of which 2i+1 takes part for both
  uint32_t place;  ///< of this rank among those that take part; kNoRank: it does not

  explicit Folded(const LaneGroup& group) : power(std::bit_floor(group.ranks())), extra(group.ranks() - power) {
    const uint32_t rank = group.rank();
    if (rank >= 2 * extra)
      place = rank - extra;
    else
      place = rank % 2 == 1 ? rank / 2 : kNoRank;
  }
  bool is_in_pair(uint32_t rank) const { return rank < 2 * extra; }
  uint32_t rank_at(uint32_t its_place) const { return its_place < extra ? 2 * its_place + 1 : its_place + extra; }
};

/// Before: the first of a pair gives the second one what it has; it does not take part.
Steps fold(LaneGroup& group, const Folded& folded, std::byte* sum, size_t bytes, const Reducer& reducer) {
  const uint32_t rank = group.rank();
  if (!folded.is_in_pair(rank) || bytes == 0) co_return 0;
  if (rank % 2 == 0) co_return co_await send_array(group, rank + 1, sum, bytes);
  co_return co_await flow(group, {rank - 1, nullptr, 0, rank - 1, sum, bytes, &reducer, true});
}

/// After: it gets the result.
Steps unfold(LaneGroup& group, const Folded& folded, std::byte* sum, size_t bytes) {
  const uint32_t rank = group.rank();
  if (!folded.is_in_pair(rank) || bytes == 0) co_return 0;
  if (rank % 2 == 1) co_return co_await send_array(group, rank - 1, sum, bytes);
  co_return co_await receive_array(group, rank + 1, sum, bytes);
}

}  // namespace

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

/// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 4.5: in each round
/// the range that a rank is to reduce is halved; then ranges are put together again in the other order.
Steps all_reduce_halving(LaneGroup& group, ReduceTask task) {
  auto* const sum = static_cast<std::byte*>(task.out);
  const size_t size = task.reducer.element_bytes();
  const Reducer reducer = partial(task.reducer);
  const Folded folded(group);
  begin_with(task.reducer, sum, task.in, task.elements);
  if (const int error = co_await fold(group, folded, sum, task.bytes(), reducer); error != 0) co_return error;
  if (folded.place != kNoRank) {
    const auto begin_of = [&](uint32_t part) {
      return part == folded.power ? task.elements : slice_of(part, folded.power, task.elements, size).begin;
    };
    // Parts [first, first + width) are this rank's. Neighbours first, so that elements stay in the order of the ranks.
    uint32_t first = 0;
    uint32_t width = folded.power;
    const auto parts_at = [&](uint32_t begin) { return sum + begin_of(begin) * size; };
    const auto bytes_of = [&](uint32_t begin, uint32_t count) {
      return (begin_of(begin + count) - begin_of(begin)) * size;
    };
    for (uint32_t distance = 1; distance < folded.power; distance *= 2) {
      const uint32_t other = folded.place ^ distance;
      const uint32_t rank = folded.rank_at(other);
      width /= 2;
      const uint32_t mine = other < folded.place ? first + width : first;
      const uint32_t theirs = other < folded.place ? first : first + width;
      const Flow halves{rank,     parts_at(theirs),    bytes_of(theirs, width),
                        rank,     parts_at(mine),      bytes_of(mine, width),
                        &reducer, other < folded.place};
      if (const int error = co_await flow(group, halves); error != 0) co_return error;
      first = mine;
    }
    end_with(task.reducer, parts_at(first), begin_of(first + 1) - begin_of(first));
    for (uint32_t distance = folded.power / 2; distance > 0; distance /= 2) {
      const uint32_t other = folded.place ^ distance;
      const uint32_t rank = folded.rank_at(other);
      const uint32_t theirs = other < folded.place ? first - width : first + width;
      const Flow both{rank, parts_at(first), bytes_of(first, width), rank, parts_at(theirs), bytes_of(theirs, width)};
      if (const int error = co_await flow(group, both); error != 0) co_return error;
      first = std::min(first, theirs);
      width *= 2;
    }
  }
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
