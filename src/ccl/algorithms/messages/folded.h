#pragma once
/// What algorithms for a power of two of ranks do with any number of them.
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ccl/channel/lane_group.h"
#include "ccl/reduce/reducer.h"

namespace nupa::ccl::lanes {

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
Steps fold(LaneGroup& group, const Folded& folded, std::byte* sum, size_t bytes, const Reducer& reducer);
/// After: it gets the result.
Steps unfold(LaneGroup& group, const Folded& folded, std::byte* sum, size_t bytes);

}  // namespace nupa::ccl::lanes
