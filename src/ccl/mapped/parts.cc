#include "ccl/mapped/parts.h"

#include <algorithm>

namespace nupa::ccl::mapped {

Steps until_all_left(MappedGroup& group, uint32_t turns) {
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (rank == group.rank()) continue;
    if (const int error = co_await group.may_write(rank, turns); error != 0) co_return error;
  }
  co_return 0;
}

Steps until_all_reached(MappedGroup& group, uint32_t step) {
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (rank == group.rank()) continue;
    if (const int error = co_await group.reached(rank, step); error != 0) co_return error;
  }
  co_return 0;
}

namespace {

/// All ranks write so many bytes into their lines and read all.
template <class Take>
Steps exchange_lines(MappedGroup& group, const void* mine, size_t bytes, const Take& take) {
  const uint32_t step = group.begin(1) + 1;
  const uint32_t turn = group.next_turn(step);
  if (!group.may_write(kSmallTurns))
    if (const int error = co_await until_all_left(group, kSmallTurns); error != 0) co_return error;
  group.write_line(turn, mine, bytes, step);
  for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (const int error = co_await group.wrote_line(rank, turn, step); error != 0) co_return error;
    take(rank, group.line_of(rank, turn).payload);
  }
  group.all_met();
  co_return 0;
}

}  // namespace

Steps agree_on_largest(MappedGroup& group, size_t mine, size_t* largest) {
  *largest = 0;
  const auto take = [&](uint32_t, const std::byte* payload) {
    size_t told;
    std::memcpy(&told, payload, sizeof told);
    *largest = std::max(*largest, told);
  };
  co_return co_await exchange_lines(group, &mine, sizeof mine, take);
}

Steps exchange_factors(MappedGroup& group, const Reducer& reducer, Factors* factors) {
  factors->of_rank.resize(group.ranks());
  uint64_t mine = 0;
  std::memcpy(&mine, reducer.factor, reducer.element_bytes());
  const auto take = [&](uint32_t rank, const std::byte* payload) {
    std::memcpy(&factors->of_rank[rank], payload, sizeof mine);
  };
  co_return co_await exchange_lines(group, &mine, sizeof mine, take);
}

}  // namespace nupa::ccl::mapped
