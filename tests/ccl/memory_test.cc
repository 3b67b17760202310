// SPDX-License-Identifier: Apache-2.0
/// Collectives on arrays of nupa_ccl_alloc().
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "reference.h"
#include "../support/sanitizers.h"

namespace nupa::ccl {
namespace {

using CclMemory = WithSmallSlots;

/// Memory of nupa_ccl_alloc() on all ranks or on some of them, freed and allocated again.
TEST_F(CclMemory, AllocatedMemory_OnAllOrSomeRanks_SumsAreRight) {
  for (uint32_t ranks = 1; ranks <= 5; ++ranks) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      constexpr size_t kMost = 100'000;
      for (uint32_t turn = 0; turn < (test::kSanitized ? 20 : 60); ++turn) {
        const size_t elements = turn % 4 == 0 ? kMost : 3000 + turn * 37;
        const Round round{Type::kFloat32, elements, turn};
        const bool allocates = turn % 3 != 2 || rank.rank() % 2 == 0;
        const bool in_place = turn % 5 == 1;
        const Bytes values = round.of(rank.rank());
        Bytes ordinary(values.size() + 64);
        auto* const memory = static_cast<std::byte*>(nupa_ccl_alloc(2 * values.size() + 64));
        rank.expect(memory != nullptr, "alloc");
        // Not at its beginning.
        std::byte* const in = memory + 64;
        std::copy(values.begin(), values.end(), in);
        std::byte* const out = in_place ? in : allocates ? in + values.size() : ordinary.data();
        const Bytes expected = reduced(round, {Type::kFloat32, Operator::kSum}, 0, rank.ranks());
        for (int again = 0; again < (in_place ? 1 : 3); ++again) {
          rank.expect_ok(nupa_ccl_all_reduce(in, out, elements, NUPA_CCL_FLOAT32, NUPA_CCL_SUM, rank.world(), nullptr),
                         round.text("all_reduce of allocated memory", in_place));
          rank.expect(std::equal(expected.begin(), expected.end(), out), round.text("is wrong", in_place));
          // No rank reads it any more, so it may be overwritten.
          std::fill(out, out + values.size(), std::byte{0x11});
        }
        rank.expect_ok(nupa_ccl_free(memory), "free");
      }
      rank.expect(nupa_ccl_free(&rank) == EINVAL, "what was not allocated");
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

/// More than a rank's table of mappable memory holds, and more than a rank keeps mapped of another.
TEST_F(CclMemory, Allocations_MoreThanTheTableHolds_SumsAreRight) {
  EXPECT_EQ(
      run_job(2,
              [](Rank& rank) {
                constexpr int kArrays = 150;
                constexpr size_t kElements = 4096;  // as many bytes as it is worth being mapped for
                std::vector<int32_t*> arrays;
                for (int i = 0; i < kArrays; ++i) {
                  arrays.push_back(static_cast<int32_t*>(nupa_ccl_alloc(kElements * sizeof(int32_t))));
                  rank.expect(arrays.back() != nullptr, "alloc");
                }
                const auto sum = [&](int index, int32_t value) {
                  int32_t* const array = arrays[static_cast<size_t>(index)];
                  std::fill(array, array + kElements, value + static_cast<int32_t>(rank.rank()));
                  rank.expect_ok(
                      nupa_ccl_all_reduce(array, array, kElements, NUPA_CCL_INT32, NUPA_CCL_SUM, rank.world(), nullptr),
                      "all_reduce");
                  for (size_t i = 0; i < kElements; ++i) rank.expect(array[i] == 2 * value + 1, "the sum");
                };
                for (int i = 0; i < kArrays; ++i) sum(i, i);
                // An array that lost its place gets another one, and one that has a place keeps it.
                for (const int index : {0, kArrays - 1, 1, 1, kArrays - 64, 2}) sum(index, 1000 + index);
                // A new array may have the address of a freed one.
                for (int i = 0; i < 5; ++i) {
                  rank.expect_ok(nupa_ccl_free(arrays[static_cast<size_t>(i)]), "free");
                  arrays[static_cast<size_t>(i)] = static_cast<int32_t*>(nupa_ccl_alloc(kElements * sizeof(int32_t)));
                  sum(i, 5000 + i);
                }
                for (int32_t* const array : arrays) rank.expect_ok(nupa_ccl_free(array), "free");
              }),
      all_well(2));
}

/// Ranks that can map all arrays copy elements from array to array. All ranks have to decide that alike.
TEST_F(CclMemory, EveryOperation_OnAllocatedMemory_EqualsTheSerialReference) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u})
    for (const bool by_all : {true, false}) {
      const auto endings = run_job(ranks, [by_all](Rank& rank) {
        for (const size_t elements : {size_t{5000}, size_t{20'011}})
          for (uint32_t turn = 0; turn < 4; ++turn) {
            g_allocates = by_all || (turn + rank.rank()) % 2 == 0;
            const bool in_place = turn % 2 != 0;
            const Round round{Type::kFloat32, elements, turn};
            check_reductions(rank, round, NUPA_CCL_SUM, in_place);
            check_reduce_scatter(rank, {Type::kFloat32, elements * rank.ranks(), turn}, NUPA_CCL_SUM, in_place);
            check_movements(rank, round, in_place);
            check_uneven(rank, turn);
            check_joining(rank, elements);
          }
      });
      EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks, " << (by_all ? "all" : "some") << " allocate";
    }
}

}  // namespace
}  // namespace nupa::ccl
