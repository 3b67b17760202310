// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Extends algorithms for a power of two of ranks to any number of ranks.
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ccl/channel/channel_group.h"
#include "ccl/reduce/reducer.h"

namespace nupa::ccl::messages {

/// The largest power of two of ranks takes part. Some of the first ones each represent one more rank.
struct Folded {
  uint32_t power;  ///< ranks that take part
  uint32_t extra;  ///< pairs (2i, 2i+1), in which 2i+1 takes part for both
  uint32_t place;  ///< this rank's number among those that take part; kNoRank: it does not

  explicit Folded(const ChannelGroup& group) : power(std::bit_floor(group.ranks())), extra(group.ranks() - power) {
    const uint32_t rank = group.rank();
    if (rank >= 2 * extra)
      place = rank - extra;
    else
      place = rank % 2 == 1 ? rank / 2 : kNoRank;
  }
  bool is_in_pair(uint32_t rank) const { return rank < 2 * extra; }
  uint32_t rank_at(uint32_t its_place) const { return its_place < extra ? 2 * its_place + 1 : its_place + extra; }
};

/// Before the algorithm: the first rank of a pair, which does not take part, sends its elements to the second one.
CollectiveTask fold(ChannelGroup& group, const Folded& folded, std::byte* sum, size_t bytes, const Reducer& reducer);
/// After the algorithm: the first rank of a pair gets the result.
CollectiveTask unfold(ChannelGroup& group, const Folded& folded, std::byte* sum, size_t bytes);

}  // namespace nupa::ccl::messages
