// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "ccl/reduce/reducer.h"

namespace nupa::ccl {

/// out = sources[0] op sources[1] op ..., with the reducer's operator or function and the rules of reduce(). `out` may
/// be one of the sources. The sources have their factors.
void combine(const Reducer& reducer, void* out, const Source* sources, uint32_t count, size_t elements);

/// The factor of each rank. Empty if the operator has no factors.
struct Factors {
  std::vector<uint64_t> of_rank;
  const void* at(uint32_t rank) const { return of_rank.empty() ? nullptr : &of_rank[rank]; }
};

/// Combines the arrays that `data_of` returns for the ranks below `count`. It is not part of a coroutine because the
/// list would be in the coroutine's frame. A short list is used where it suffices.
template <uint32_t kMost = 8, class DataOf>
[[gnu::noinline]] void combine_ranks(const Reducer& reducer, const Factors& factors, void* out, uint32_t count,
                                     size_t elements, const DataOf& data_of) {
  if constexpr (kMost < kMaxSources)
    if (count > kMost) return combine_ranks<kMaxSources>(reducer, factors, out, count, elements, data_of);
  Source sources[kMost];
  for (uint32_t rank = 0; rank < count; ++rank) sources[rank] = {data_of(rank), factors.at(rank)};
  combine(reducer, out, sources, count, elements);
}

}  // namespace nupa::ccl
