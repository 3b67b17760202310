// SPDX-License-Identifier: Apache-2.0
#include "ccl/algorithms/shm/parts.h"

#include <algorithm>
#include <vector>

#include "ccl/algorithms/shm.h"

namespace nupa::ccl::shm {

CollectiveTask until_all_left(ShmGroup& group, uint32_t turns) {
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (rank == group.rank()) continue;
    if (const int error = co_await group.may_write(rank, turns); error != 0) co_return error;
  }
  co_return 0;
}

CollectiveTask until_all_reached(ShmGroup& group, uint32_t step) {
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (rank == group.rank()) continue;
    if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
  }
  co_return 0;
}

namespace {

/// Every rank contributes a word and gets all words, by rank.
CollectiveTask gather_words(ShmGroup& group, const uint64_t& mine, uint64_t* all) {
  Call call;
  call.operation = Operation::kAllGather;
  call.in = &mine;
  call.out = all;
  call.elements = sizeof mine;
  co_return co_await all_gather_lines(group, call);
}

}  // namespace

CollectiveTask agree_on_largest(ShmGroup& group, size_t mine, size_t* largest) {
  std::vector<uint64_t> all(group.ranks());
  const uint64_t own = mine;
  if (const int error = co_await gather_words(group, own, all.data()); error != 0) co_return error;
  *largest = *std::max_element(all.begin(), all.end());
  co_return 0;
}

CollectiveTask exchange_factors(ShmGroup& group, const Reducer& reducer, Factors* factors) {
  factors->of_rank.resize(group.ranks());
  co_return co_await gather_words(group, reducer.factor, factors->of_rank.data());
}

}  // namespace nupa::ccl::shm
