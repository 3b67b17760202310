// SPDX-License-Identifier: Apache-2.0
/// all_reduce by recursive halving and doubling: Rabenseifner's algorithm. Thakur, Rabenseifner and Gropp,
/// "Optimization of collective communication operations in MPICH" (2005), 4.5.
#include <algorithm>

#include "ccl/algorithms/messages.h"
#include "ccl/algorithms/messages/folded.h"
#include "ccl/algorithms/messages/transfer.h"

namespace nupa::ccl::messages {

/// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 4.5: each round
/// halves the range that a rank reduces; then the ranges are joined again in reverse order.
CollectiveTask all_reduce_halving(ChannelGroup& group, const Call& call) {
  auto* const sum = static_cast<std::byte*>(call.out);
  const size_t size = call.reducer.element_bytes();
  const Reducer reducer = partial(call.reducer);
  const Folded folded(group);
  begin_with(call.reducer, sum, call.in, call.elements);
  if (const int error = co_await fold(group, folded, sum, call.bytes(), reducer); error != 0) co_return error;
  if (folded.place != kNoRank) {
    const auto begin_of = [&](uint32_t part) {
      return part == folded.power ? call.elements : slice_of(part, folded.power, call.elements, size).begin;
    };
    // Parts [first, first + width) are this rank's. Neighbours exchange first, so that elements stay in the order of
    // the ranks.
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
    end_with(call.reducer, parts_at(first), begin_of(first + 1) - begin_of(first));
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
  co_return co_await unfold(group, folded, sum, call.bytes());
}

}  // namespace nupa::ccl::messages
